"""Tail batching (RollPacker, section 3): short speculative rounds, and a long one when enough draws were deferred."""

import math
from typing import Self

from longshore.api.rollout import Rollout, TailBatchingSettings
from longshore.api.round_status import RoundKind
from longshore.policy.draws import DrawCursor
from longshore.policy.round_plan import RoundPlan
from longshore.policy.round_policy import NO_RULES, AdmissionRules, BatchShape, RoundPolicy


class TailBatching(RoundPolicy):
    """A short round starts ceil(eta P0) draws x ceil(eta R0) responses and accepts the first P0 x R0.

    What it drops waits, as whole draws, in the long-prompt queue. When the queue holds P0 draws, the next round is
    long: the P0 oldest, R0 responses each, all accepted. So no draw is lost, and none waits for ever. In strict rounds
    the queue holds no tokens; otherwise they may be kept, and the long round continues them (section 7).

    With acceptance by trainable groups this is the DAPO variant of section 7: issue goes on in place of groups of zero
    variance, which are consumed and never queued, and the round ends when P0 groups with a gradient are there.
    """

    round_kinds = (RoundKind.SHORT, RoundKind.LONG)

    @classmethod
    def of(
        cls, rollout: Rollout, shape: BatchShape, cursor: DrawCursor, rules: AdmissionRules, groups_per_update: int
    ) -> Self:
        return cls(shape, cursor, rollout.tail_batching, rules, keeps_tokens=rollout.keeps_tokens)

    @classmethod
    def usual_period(cls, rollout: Rollout, num_prompts: int) -> tuple[RoundKind, ...]:
        """Return short rounds until P0 draws wait, and long ones until fewer do."""
        num_short, num_long = period(rollout.tail_batching.prompt_factor, num_prompts)
        return (*[RoundKind.SHORT] * num_short, *[RoundKind.LONG] * num_long)

    def __init__(
        self,
        shape: BatchShape,
        cursor: DrawCursor,
        settings: TailBatchingSettings,
        rules: AdmissionRules = NO_RULES,
        *,
        keeps_tokens: bool = False,
    ) -> None:
        super().__init__(shape, cursor, rules, keeps_tokens=keeps_tokens)
        self._use_factors(settings)

    def next_kind(self, *, draining: bool = False) -> RoundKind:
        """Return Long as soon as the queue holds P0 draws."""
        return RoundKind.LONG if draining or len(self._waiting) >= self._shape.num_prompts else RoundKind.SHORT

    def _use_factors(self, settings: TailBatchingSettings) -> None:
        self._num_speculative_prompts = ceil_factor(settings.prompt_factor, self._shape.num_prompts)
        self._num_speculative_responses = ceil_factor(settings.response_factor, self._shape.num_responses)

    def _plan(self) -> RoundPlan:
        num_prompts = self._shape.num_prompts
        if self.next_kind() is RoundKind.LONG:
            return self._long(num_prompts)
        admissions = self._fresh(self._num_speculative_prompts, self._num_speculative_responses)
        return RoundPlan(RoundKind.SHORT, num_prompts, admissions, self._num_speculative_prompts)

    def _plan_drain(self) -> RoundPlan:
        return self._long(min(len(self._waiting), self._shape.num_prompts))

    def _long(self, num_groups: int) -> RoundPlan:
        num_responses = self._shape.num_responses
        admissions = tuple(
            waiting.admission(num_responses, limit=num_responses) for waiting in self._waiting.take(num_groups)
        )
        return RoundPlan(RoundKind.LONG, num_groups, admissions, num_groups)


def ceil_factor(factor: float, count: int) -> int:
    """Return ceil(factor * count), immune to a product such as 1.1 * 10 that lies a rounding error above its value."""
    return math.ceil(round(factor * count, 9))


def period(prompt_factor: float, num_prompts: int) -> tuple[int, int]:
    """Return the number of short rounds until P0 draws wait, and of long ones until fewer do; 1 and 0 if none do."""
    num_deferred = ceil_factor(prompt_factor, num_prompts) - num_prompts
    if not num_deferred:
        return 1, 0
    return math.ceil(num_prompts / num_deferred), max(1, num_deferred // num_prompts)
