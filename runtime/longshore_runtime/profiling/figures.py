"""Collect measurements, and compute their medians as a profile. Pure."""

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from longshore.sim.profile import DecodePoint, JudgePoint, PrefillPoint, Profile, Subject
from longshore_runtime.profiling.staircase import Window

_SCALARS = (
    "train_tokens_per_s", "optimizer_s", "publish_s", "to_training_s", "to_rollout_s", "migration_s", "regroup_s",
)  # fmt: skip
"""Fields of a profile that are one figure each."""


@dataclass
class _Decode:
    context_tokens: list[int] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)


class Figures:
    """All measurements so far, in any order and number; repeated ones become a median."""

    def __init__(self) -> None:
        self._decode: dict[tuple[int, int, int], _Decode] = defaultdict(_Decode)
        """Decode steps by tensor-parallel size, requests and prompt tokens."""
        self._prefill: dict[tuple[int, int], list[float]] = defaultdict(list)
        self._kv_capacity: dict[int, list[int]] = defaultdict(list)
        self._judge: dict[tuple[str, int], list[tuple[float, int | None]]] = defaultdict(list)
        self._scalars: dict[str, list[float]] = defaultdict(list)

    def decode(self, tp_size: int, prompt_tokens: int, window: Window) -> None:
        """Add the seconds of decode steps."""
        if window.step_s > 0:
            found = self._decode[tp_size, window.num_running, prompt_tokens]
            found.context_tokens.append(window.context_tokens)
            found.step_s.append(window.step_s)

    def prefill(self, tp_size: int, prompt_tokens: int, tokens_per_s: float) -> None:
        """Add the seconds of prefills."""
        self._prefill[tp_size, prompt_tokens].append(tokens_per_s)

    def kv_capacity(self, tp_size: int, num_tokens: int) -> None:
        """Add the capacity of a KV cache, in tokens."""
        self._kv_capacity[tp_size].append(num_tokens)

    def judge(self, function: str, question_tokens: int, seconds: float, peak_bytes: int | None) -> None:
        """Add one question to a colocated judge."""
        self._judge[function, question_tokens].append((seconds, peak_bytes))

    def scalar(self, name: str, value: float) -> None:
        """Add a value of one of the single figures of a profile, by the name of its field."""
        assert name in _SCALARS, f"a profile has no figure {name}"
        self._scalars[name].append(value)

    def profile(self, subject: Subject | None = None) -> Profile:
        """Return the medians; what was not measured is unset."""
        scalars: dict[str, Any] = {name: median(values) for name, values in self._scalars.items()}
        counts = {_alias(name): len(values) for name, values in self._scalars.items()}
        counts |= {f"{_alias('kv_capacity_tokens')}.{size}": len(found) for size, found in self._kv_capacity.items()}
        return Profile(
            subject=subject,
            decode=[
                DecodePoint(
                    tp_size=tp_size,
                    num_running=num_running,
                    context_tokens=round(median(found.context_tokens)),
                    step_s=median(found.step_s),
                    measurements=len(found.step_s),
                )
                for (tp_size, num_running, _), found in sorted(self._decode.items())
            ],
            prefill=[
                PrefillPoint(tp_size=tp_size, prompt_tokens=tokens, tokens_per_s=median(rates), measurements=len(rates))
                for (tp_size, tokens), rates in sorted(self._prefill.items())
            ],
            # Engines of one size hold almost the same; the simulator knows one number.
            kv_capacity_tokens={size: min(tokens) for size, tokens in sorted(self._kv_capacity.items())},
            judge=[
                JudgePoint(
                    function=function,
                    question_tokens=tokens,
                    seconds=median(seconds for seconds, _ in found),
                    peak_bytes=max((peak for _, peak in found if peak is not None), default=None),
                    measurements=len(found),
                )
                for (function, tokens), found in sorted(self._judge.items())
            ],
            measurements=counts,
            **scalars,
        )


def _alias(name: str) -> str:
    return Profile.model_fields[name].alias or name
