"""Run a workload of given response lengths.

Every token is really decoded, scored and trained on, but their number follows a known distribution. The model is tiny
and never ends a response by itself.
"""

import dataclasses
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

from longshore.api.runtime_status import RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore.api.training import CheckpointSettings
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, Request
from longshore_runtime.rollout.round_runner import RoundRequests
from longshore_runtime.step.loop import TrainingLoop
from longshore_runtime.step.parts import LoopOptions, Parts

_NEVER: Final = CheckpointSettings(every_steps=10**6, every_seconds=10**7)
"""Settings under which no checkpoint is due."""


class NoSink:
    """Status sink for runs without an API server."""

    def report(self, status: RuntimeStatus) -> None:
        """Do nothing: nobody listens."""

    def close(self) -> None:
        """Do nothing: no report waits."""


@dataclass(frozen=True)
class ResponseTokens:
    """Lognormal lengths: exp(N(log median, promptSigma) + N(0, responseSigma)), cut at max."""

    median: float
    promptSigma: float  # noqa: N815 - as in the file
    responseSigma: float  # noqa: N815
    max: int
    seed: int

    def of(self, response: ResponseId) -> int:
        """Return the length of one response: the same whenever and wherever it is sampled."""
        prompt = self._log_prompt(response.draw)
        own = random.Random(f"{self.seed}/{response}").gauss(0.0, self.responseSigma)
        return max(1, min(self.max, round(math.exp(prompt + own))))

    def deviate(self, draw: Draw) -> float:
        """Return the place of a prompt among all prompts by length, as a standard normal deviate."""
        return (self._log_prompt(draw) - math.log(self.median)) / self.promptSigma

    def _log_prompt(self, draw: Draw) -> float:
        return random.Random(f"{self.seed}/{draw}").gauss(math.log(self.median), self.promptSigma)


@dataclass(frozen=True)
class Workload:
    """A file that describes a workload: a spec, response lengths, and jobs that differ from the spec in some fields."""

    path: Path

    @cached_property
    def spec(self) -> RLJobSpec:
        """Spec that all jobs of the workload share."""
        return RLJobSpec.model_validate(self._file["spec"])

    @cached_property
    def lengths(self) -> ResponseTokens:
        """Lengths of the responses."""
        return ResponseTokens(**self._file["responseTokens"])

    @cached_property
    def model(self) -> Mapping[str, Any] | None:
        """Shape of the model, where it is not the tiny one."""
        model: dict[str, Any] | None = self._file.get("model")
        return model

    @cached_property
    def jobs(self) -> Mapping[str, RLJobSpec]:
        """Jobs by name: the spec with some fields changed."""
        jobs = self._file["jobs"].items()
        return {name: RLJobSpec.model_validate(merged(self._file["spec"], changes)) for name, changes in jobs}

    @cached_property
    def _file(self) -> dict[str, Any]:
        content: dict[str, Any] = yaml.safe_load(self.path.read_text(encoding="utf-8"))
        return content


@dataclasses.dataclass(frozen=True)
class _OfGivenLength(RoundRequests):
    lengths: ResponseTokens

    def __call__(self, response: ResponseId, kept: Completion | None, turn: int = 0) -> Request:
        return dataclasses.replace(super().__call__(response, kept, turn), max_tokens=self.lengths.of(response))


class GivenLengths(TrainingLoop):
    """The training loop, with responses as long as the workload says."""

    def __init__(self, options: LoopOptions, parts: Parts, lengths: ResponseTokens) -> None:
        super().__init__(options, parts)
        self._given = lengths

    def _training_requests(self) -> RoundRequests:
        return _OfGivenLength(**vars(super()._training_requests()), lengths=self._given)


def loop_options(spec: RLJobSpec) -> LoopOptions:
    """Return the options of a loop that does not checkpoint by itself."""
    return dataclasses.replace(LoopOptions.of(spec), checkpoint=_NEVER)


def parity(prompt: str, response: str, answer: str) -> float:
    """Return a reward that differs within groups, so that every group has gradients."""
    return float(sum(map(ord, response)) % 2)


def endless_model(directory: Path, shape: Mapping[str, Any] | None = None) -> None:
    """Write a model without an end token: its responses end at the length that they are given, and nowhere else.

    `shape` are fields of Qwen3's configuration; without them it is the tiny model. Weights are random.
    """
    from longshore_runtime.backends.tiny_model import build_tiny_model, build_tokenizer

    build_tiny_model(directory, seed=0, **(shape or {}))
    tokenizer = build_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(directory)
    if shape:
        _name_all_tokens(directory / "tokenizer.json", shape["vocab_size"])
    for name in ("config.json", "generation_config.json"):
        config = json.loads((directory / name).read_text())
        config.pop("eos_token_id", None)
        (directory / name).write_text(json.dumps(config))


def _name_all_tokens(file: Path, vocab_size: int) -> None:
    """Give the tokenizer a token for every number that the model can sample, so that every response has a text."""
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"<{number}>": number for number in range(len(vocabulary), vocab_size)}
    file.write_text(json.dumps(tokenizer), encoding="utf-8")


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes`, section by section."""
    both = {**base, **changes}
    return {
        key: merged(base[key], value) if isinstance(value, Mapping) and isinstance(base.get(key), Mapping) else value
        for key, value in both.items()
    }
