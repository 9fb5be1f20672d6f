"""Active partial rollout (APRIL, section 2.2): start more groups than needed, keep the tokens of those that lag."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from longshore.api.rollout import PartialRolloutSettings, Rollout
from longshore.api.round_status import RoundKind
from longshore.policy.draws import DrawCursor
from longshore.policy.postponement import can_keep, num_due
from longshore.policy.round_plan import RoundPlan
from longshore.policy.round_policy import NO_RULES, AdmissionRules, BatchShape, RoundPolicy
from longshore.policy.tail_batching import ceil_factor
from longshore.policy.waiting import WaitingDraw


class PartialRollout(RoundPolicy):
    """A round has N' = factor * P0 groups, those left over first, and ends when P0 of them are served.

    Finished responses of the others wait; running ones are cut off, keep their tokens and are continued next round.
    A response gets tokens of one more policy version in every round that leaves it over, so a limit V on versions is a
    limit V - 1 on postponements: the groups that would pass it are due, and the round waits for them.
    """

    @classmethod
    def of(
        cls, rollout: Rollout, shape: BatchShape, cursor: DrawCursor, rules: AdmissionRules, groups_per_update: int
    ) -> Self:
        return cls(shape, cursor, rollout.partial_rollout, rules)

    def __init__(
        self,
        shape: BatchShape,
        cursor: DrawCursor,
        settings: PartialRolloutSettings,
        rules: AdmissionRules = NO_RULES,
    ) -> None:
        super().__init__(shape, cursor, rules, keeps_tokens=True)
        self._num_admitted = ceil_factor(settings.group_factor, shape.num_prompts)
        self._max_postponements = settings.max_policy_versions - 1
        assert self._num_admitted <= shape.num_prompts * settings.max_policy_versions, "validation refuses it"

    def _plan(self) -> RoundPlan:
        resumed = self._waiting.take(self._num_admitted)
        return self._continue(resumed, self._shape.num_prompts, num_fresh=self._num_admitted - len(resumed))

    def _plan_drain(self) -> RoundPlan:
        num_groups = min(len(self._waiting), self._shape.num_prompts)
        return self._continue(self._waiting.take(len(self._waiting)), num_groups, num_fresh=0)

    def _continue(self, resumed: Sequence[WaitingDraw], num_groups: int, *, num_fresh: int) -> RoundPlan:
        admissions = tuple(waiting.admission(self._shape.num_responses) for waiting in resumed)
        count = num_due([waiting.num_postponed for waiting in resumed], num_groups, self._max_postponements)
        oldest = sorted(resumed, key=lambda waiting: -waiting.num_postponed)
        return RoundPlan(
            RoundKind.FULL,
            num_groups,
            admissions + self._fresh(num_fresh),
            num_candidates=len(admissions) + num_fresh,
            due=frozenset(waiting.draw for waiting in oldest[:count]),
        )

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        postponements = [waiting.num_postponed for waiting in self._waiting.all]
        if not can_keep(postponements, self._shape.num_prompts, self._max_postponements):
            raise ValueError(
                f"rollout.partialRollout.maxPolicyVersions: {self._max_postponements + 1} is too few for the "
                f"{len(postponements)} groups that wait; restore it and algorithm.promptsPerStep, or start a "
                "new job with another storage.output"
            )
