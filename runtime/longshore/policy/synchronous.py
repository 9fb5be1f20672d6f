"""The baseline: every round samples P0 x R0 responses and waits for all of them."""

from collections.abc import Sequence
from typing import Self

from longshore.api.rollout import Rollout
from longshore.api.round_status import RoundKind
from longshore.policy.draws import DrawCursor
from longshore.policy.round import Leftover, ResponseId
from longshore.policy.round_plan import RoundPlan
from longshore.policy.round_policy import AdmissionRules, BatchShape, RoundPolicy


class Synchronous(RoundPolicy):
    """Admission: all. Acceptance: all. Leftovers: none."""

    @classmethod
    def of(
        cls, rollout: Rollout, shape: BatchShape, cursor: DrawCursor, rules: AdmissionRules, groups_per_update: int
    ) -> Self:
        return cls(shape, cursor, rules)

    def _plan(self) -> RoundPlan:
        num_prompts = self._shape.num_prompts
        return RoundPlan(RoundKind.FULL, num_prompts, self._fresh(num_prompts), num_prompts)

    def _plan_drain(self) -> RoundPlan:
        raise AssertionError("a synchronous round leaves nothing to drain")

    def _take_leftovers(self, leftovers: Sequence[Leftover]) -> tuple[ResponseId, ...]:
        assert not leftovers
        return ()
