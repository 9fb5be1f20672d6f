"""The baseline: every round samples P0 x R0 responses and waits for all of them."""

from collections.abc import Sequence

from longshore.api.round_status import RoundKind
from longshore.policy.round import Leftover, ResponseId
from longshore.policy.round_plan import RoundPlan
from longshore.policy.round_policy import RoundPolicy


class Synchronous(RoundPolicy):
    """Admission: all. Acceptance: all. Leftovers: none."""

    def _plan(self) -> RoundPlan:
        num_prompts = self._shape.num_prompts
        return RoundPlan(RoundKind.FULL, num_prompts, self._fresh(num_prompts), num_prompts)

    def _plan_drain(self) -> RoundPlan:
        raise AssertionError("a synchronous round leaves nothing to drain")

    def _take_leftovers(self, leftovers: Sequence[Leftover]) -> tuple[ResponseId, ...]:
        assert not leftovers
        return ()
