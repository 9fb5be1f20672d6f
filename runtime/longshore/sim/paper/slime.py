"""How slime samples, whose baseline and partial rollout APRIL measures (`slime/rollout/sglang_example.py` of its code).

A step starts a lot of groups: 32, or 64 with APRIL. Another whole lot follows whenever fewer groups than the step
trains on are left that may still be taken, which happens only where dynamic sampling drops groups of equal rewards.
Longshore's own policies replace such groups one by one. No response is due: slime has no limit on policy versions.
"""

from collections.abc import Sequence
from dataclasses import replace

from longshore.api.rollout import PartialRolloutSettings
from longshore.policy.draws import DrawCursor
from longshore.policy.partial_rollout import PartialRollout
from longshore.policy.round import Decision, Leftover, ResponseId
from longshore.policy.round_plan import Acceptance, RoundPlan
from longshore.policy.round_policy import AdmissionRules, BatchShape, RoundPolicy
from longshore.policy.synchronous import Synchronous

_NO_LIMIT: int = 1_000
"""Policy versions; no response lives to see so many."""


def slime_policy(shape: BatchShape, cursor: DrawCursor, lot: int | None, *, dynamic_sampling: bool) -> RoundPolicy:
    """Return the baseline, or, with the size of its lots, partial rollout."""
    rules = AdmissionRules(Acceptance.TRAINABLE if dynamic_sampling else Acceptance.SERVED)
    if lot is None:
        return _Baseline(shape, cursor, rules)
    return _Partial(shape, cursor, lot, rules)


class _Baseline(Synchronous):
    """Lots of P0. What runs when the batch is complete is dropped."""

    def _with_replacements(self, decision: Decision) -> Decision:
        return self._with_lots(decision, self._shape.num_prompts)

    def _take_leftovers(self, leftovers: Sequence[Leftover]) -> tuple[ResponseId, ...]:
        return ()


class _Partial(PartialRollout):
    """Larger lots; what runs when the batch is complete goes on in the next step."""

    def __init__(self, shape: BatchShape, cursor: DrawCursor, lot: int, rules: AdmissionRules) -> None:
        settings = PartialRolloutSettings(group_factor=lot / shape.num_prompts, max_policy_versions=_NO_LIMIT)
        super().__init__(shape, cursor, settings, rules)
        self._lot = lot

    def _plan(self) -> RoundPlan:
        return replace(super()._plan(), num_candidates=self._shape.num_prompts)

    def _with_replacements(self, decision: Decision) -> Decision:
        return self._with_lots(decision, self._lot)
