"""Group pipeline (RolloutPipe, section 3): trainable groups reach the trainer while later groups still run."""

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any, Final, Self

from longshore.api.rollout import Rollout
from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.round import Decision, ResponseFinished
from longshore.policy.round_policy import NO_RULES, AdmissionRules, BatchShape, RoundStart
from longshore.policy.synchronous import Synchronous

_NUM_REMEMBERED: Final = 512
"""Groups that the width of the frontier goes by."""


class GroupPipeline(Synchronous):
    """Every group of the round is sampled and accepted; what is special lies at its two ends.

    Frontier-group dispatch (section 3.3): only the F_w groups of lowest order that are not served are in service, on
    each engine. A request is admitted if and only if its group is among them (`Gates.frontier_width`); a group that is
    served frees its slot. Unless the job says otherwise the frontier is as wide as the KV caches hold, by the groups
    served so far; before any is known, every group is in service. Complete-group pipelining (section 3.2):
    `policy.handover` passes trainable groups on in FIFO order.
    """

    @classmethod
    def of(
        cls, rollout: Rollout, shape: BatchShape, cursor: DrawCursor, rules: AdmissionRules, groups_per_update: int
    ) -> Self:
        return cls(shape, cursor, rules, groups_per_update)

    def __init__(
        self,
        shape: BatchShape,
        cursor: DrawCursor,
        rules: AdmissionRules = NO_RULES,
        groups_per_update: int = 1,
    ) -> None:
        """Keep an unset frontier at `groups_per_update` groups (U) or more, so that updates are fed."""
        super().__init__(shape, cursor, rules)
        self._groups_per_update = groups_per_update
        self._kv_capacity_tokens = 0
        self._mean_held_tokens = 0.0
        """Mean tokens that a group holds, as known when the round began; 0: unknown."""
        self._held_tokens: deque[float] = deque(maxlen=_NUM_REMEMBERED)
        """Tokens that the newest groups that ended held on average."""
        self._num_tokens: dict[Draw, list[int]] = {}

    def start_round(
        self, *, draining: bool = False, engines: Collection[int] = (0,), kv_capacity_tokens: int = 0
    ) -> RoundStart:
        """Begin a round; the width of its frontier is settled here."""
        self._kv_capacity_tokens = kv_capacity_tokens
        self._num_tokens = {}
        self._mean_held_tokens = fmean(self._held_tokens) if self._held_tokens else 0.0
        return super().start_round(draining=draining, engines=engines, kv_capacity_tokens=kv_capacity_tokens)

    def responses_finished(self, events: Sequence[ResponseFinished]) -> Decision:
        """Note responses that ended; the lengths of whole groups say how much room one takes."""
        for event in events:
            lengths = self._num_tokens.setdefault(event.response.draw, [])
            lengths.append(event.num_tokens)
            if len(lengths) == self._shape.num_responses:
                self._held_tokens.append(mean_held_tokens(lengths))
        return super().responses_finished(events)

    @property
    def num_groups_in_cache(self) -> int | None:
        """Groups in service that fill the KV cache of one engine, and one that takes over what becomes free.

        None until a round begins that knows the size of the cache.
        """
        if not self._kv_capacity_tokens or not self._mean_held_tokens:
            return None
        return math.ceil(self._kv_capacity_tokens / self._mean_held_tokens) + 1

    @property
    def _frontier_width(self) -> int | None:
        per_engine = self.num_groups_in_cache
        if self._rules.frontier_width is not None or per_engine is None:
            return super()._frontier_width
        return max(self._groups_per_update, per_engine * max(1, len(self._engines)))

    def _export_history(self) -> dict[str, Any]:
        return {"held_tokens": list(self._held_tokens)}

    def _load_history(self, state: Mapping[str, Any]) -> None:
        self._held_tokens.clear()
        self._held_tokens.extend(state["held_tokens"])


def mean_held_tokens(num_tokens: Sequence[int]) -> float:
    """Return tokens that a group holds in a KV cache on average over the time in which it is in service.

    Its responses grow side by side, a token a step: one of n tokens holds n / 2 on average over n steps, and the group
    is in service for as many steps as its longest response has tokens. The prompt, stored once, is left out.
    """
    longest = max(num_tokens)
    return sum(count * count for count in num_tokens) / (2 * longest) if longest else 0.0
