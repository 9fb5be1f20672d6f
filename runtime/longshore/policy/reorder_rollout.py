"""Reorder rollout (verl's recipe): fill the engines, take the first N groups, recycle the rest, up to a bound."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from longshore.api.rollout import ReorderRolloutSettings, Rollout
from longshore.api.round_status import RoundKind
from longshore.policy.draws import DrawCursor
from longshore.policy.length_history import LengthHistory
from longshore.policy.postponement import can_keep, num_due
from longshore.policy.round import Decision, Leftover, ResponseFinished, ResponseId
from longshore.policy.round_plan import RoundPlan
from longshore.policy.round_policy import NO_RULES, AdmissionRules, BatchShape, RoundPolicy
from longshore.policy.tail_batching import ceil_factor
from longshore.policy.waiting import WaitingDraw


class ReorderRollout(RoundPolicy):
    """A round starts as many groups as the engines hold (up to F P0) and accepts the first P0 that are served.

    The rest goes back into the pool, without its tokens unless the job keeps them. When a draw is due (X rounds have
    put it off, or more would soon be due than fit), the next round is long: the P0 draws that were put off most, all
    accepted, and nothing alongside them. Forced one by one, stragglers would make every round long.

    With length grouping the pool looks further ahead, and a round takes the shortest by prediction; a long one takes
    those whose lengths are nearest to the draws that are due.
    """

    round_kinds = (RoundKind.FULL, RoundKind.LONG)

    @classmethod
    def of(
        cls, rollout: Rollout, shape: BatchShape, cursor: DrawCursor, rules: AdmissionRules, groups_per_update: int
    ) -> Self:
        settings, max_num_seqs = rollout.reorder_rollout, rollout.engine.max_num_seqs
        return cls(shape, cursor, settings, max_num_seqs, rules, keeps_tokens=rollout.keeps_tokens)

    @classmethod
    def usual_period(cls, rollout: Rollout, num_prompts: int) -> tuple[RoundKind, ...]:
        """Return as many rounds as may put a draw off, and a long one."""
        return (*[RoundKind.FULL] * rollout.reorder_rollout.max_postponements, RoundKind.LONG)

    def __init__(
        self,
        shape: BatchShape,
        cursor: DrawCursor,
        settings: ReorderRolloutSettings,
        max_num_seqs: int,
        rules: AdmissionRules = NO_RULES,
        *,
        keeps_tokens: bool = False,
    ) -> None:
        """Take `max_num_seqs`, the number of requests that one engine runs at once."""
        super().__init__(shape, cursor, rules, keeps_tokens=keeps_tokens)
        self._settings = settings
        factor = min(settings.group_factor, settings.max_postponements + 1)
        self._max_groups = ceil_factor(factor, shape.num_prompts)
        """In play: with more of them than the next X + 1 rounds accept, some would be put off too often."""
        self._max_num_seqs = rules.max_active_per_engine or max_num_seqs
        self._lengths = LengthHistory()
        self._longest_finished = 0

    def next_kind(self, *, draining: bool = False) -> RoundKind:
        """Return Long when a draw is due."""
        return RoundKind.LONG if draining or self._due(self._shape.num_prompts) else RoundKind.FULL

    def responses_finished(self, events: Sequence[ResponseFinished]) -> Decision:
        """Note responses that ended; their lengths predict those of the next epoch."""
        self._lengths.observe(events)
        self._longest_finished = max([self._longest_finished, *(event.num_tokens for event in events)])
        return super().responses_finished(events)

    def _plan(self) -> RoundPlan:
        num_groups = self._shape.num_prompts
        due = self._due(num_groups)
        if due:
            return self._take(RoundKind.LONG, num_groups, num_groups, due)
        held = max(1, len(self._engines)) * self._max_num_seqs // self._shape.num_responses
        num_admitted = min(self._max_groups, max(num_groups, held))
        self._look_ahead(self._max_groups if self._settings.length_grouping else num_admitted)
        return self._take(RoundKind.FULL, num_groups, num_admitted)

    def _plan_drain(self) -> RoundPlan:
        num_groups = min(len(self._waiting), self._shape.num_prompts)
        return self._take(RoundKind.LONG, num_groups, num_groups, self._due(num_groups))

    def _look_ahead(self, num_draws: int) -> None:
        self._waiting.add(self._cursor.take(max(0, num_draws - len(self._waiting))))

    def _take(self, kind: RoundKind, num_groups: int, num_admitted: int, due: Sequence[WaitingDraw] = ()) -> RoundPlan:
        self._look_ahead(num_admitted)
        chosen = self._waiting.pick([*due, *self._nearest(due, self._oldest())[: num_admitted - len(due)]])
        self._waiting.postpone()
        self._longest_finished = 0
        return RoundPlan(
            kind,
            num_groups,
            tuple(waiting.admission(self._shape.num_responses) for waiting in chosen),
            num_candidates=num_admitted,
            due=frozenset(waiting.draw for waiting in due),
        )

    def _due(self, num_groups: int) -> list[WaitingDraw]:
        """Return the draws that the next round must accept.

        Draws that were never put off fit into the X rounds after it anyway, since no more than (X + 1) P0 are in play.
        """
        postponed = [waiting for waiting in self._oldest() if waiting.num_postponed]
        counts = [waiting.num_postponed for waiting in postponed]
        return postponed[: num_due(counts, num_groups, self._settings.max_postponements)]

    def _oldest(self) -> list[WaitingDraw]:
        return sorted(self._waiting.all, key=lambda waiting: -waiting.num_postponed)

    def _nearest(self, due: Sequence[WaitingDraw], others: Sequence[WaitingDraw]) -> list[WaitingDraw]:
        """Return those that are not due, in the order in which they go with those that are."""
        draws = {waiting.draw for waiting in due}
        left = [waiting for waiting in others if waiting.draw not in draws]
        if not self._settings.length_grouping:
            return left
        target = max((self._expected_tokens(waiting) for waiting in due), default=0.0)
        return sorted(left, key=lambda waiting: abs(self._expected_tokens(waiting) - target))

    def _expected_tokens(self, waiting: WaitingDraw) -> float:
        return self._lengths.expected_tokens(waiting.draw.index)

    def _take_leftovers(self, leftovers: Sequence[Leftover]) -> tuple[ResponseId, ...]:
        unfinished = [left.draw.index for left in leftovers if not left.finished]
        self._lengths.at_least(unfinished, self._longest_finished)
        return super()._take_leftovers(leftovers)

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        postponements, most = [waiting.num_postponed for waiting in self._waiting.all], self._settings.max_postponements
        if not can_keep(postponements, self._shape.num_prompts, most):
            raise ValueError(
                f"rollout.reorderRollout.maxPostponements: {most} is too few for the {len(postponements)} groups that "
                "wait; restore it and algorithm.promptsPerStep, or start a new job with another storage.output"
            )

    def _export_history(self) -> dict[str, Any]:
        return self._lengths.export_state()

    def _load_history(self, state: Mapping[str, Any]) -> None:
        self._lengths.load_state(state)
