"""Active partial rollout (APRIL, section 3): start more groups than needed, keep the tokens of those that lag."""

from collections.abc import Sequence
from typing import Any

from longshore.api.rollout import PartialRollout as PartialRolloutKnobs
from longshore.api.status import RoundKind
from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.round import Admission, Leftover, ResponseId
from longshore.policy.round_policy import BatchShape, RoundPolicy, _Plan, fresh
from longshore.policy.tail_batching import ceil_factor


class PartialRollout(RoundPolicy):
    """A round has N' = factor * P0 groups, those left over first, and ends when P0 of them are served.

    Finished responses of the others wait; running ones are cut off, keep their tokens and are continued next round.
    """

    def __init__(self, shape: BatchShape, cursor: DrawCursor, knobs: PartialRolloutKnobs) -> None:
        super().__init__(shape, cursor)
        self._num_admitted = ceil_factor(knobs.group_factor, shape.num_prompts)
        self._buffer: list[Leftover] = []

    @property
    def num_deferred(self) -> int:
        return len(self._buffer)

    def _plan(self) -> _Plan:
        resumed = self._resume(self._num_admitted)
        draws = self._cursor.take(self._num_admitted - len(resumed))
        admissions = resumed + tuple(fresh(draw, self._shape.num_responses) for draw in draws)
        return _Plan(RoundKind.FULL, self._shape.num_prompts, admissions)

    def _plan_drain(self) -> _Plan:
        resumed = self._resume(self._shape.num_prompts)
        return _Plan(RoundKind.FULL, len(resumed), resumed)

    def _resume(self, limit: int) -> tuple[Admission, ...]:
        resumed, self._buffer = self._buffer[:limit], self._buffer[limit:]
        return tuple(Admission(left.draw, left.running, left.finished) for left in resumed)

    def _take_leftovers(self, leftovers: Sequence[Leftover]) -> tuple[ResponseId, ...]:
        self._buffer += leftovers
        return tuple(ResponseId(left.draw, index) for left in self._buffer for index in (*left.finished, *left.running))

    def _export_leftovers(self) -> list[Any]:
        return [[left.draw.epoch, left.draw.index, list(left.finished), list(left.running)] for left in self._buffer]

    def _load_leftovers(self, state: Sequence[Any]) -> None:
        self._buffer = [
            Leftover(Draw(epoch, index), tuple(finished), tuple(running)) for epoch, index, finished, running in state
        ]
        if any(len(left.finished) + len(left.running) < self._shape.num_responses for left in self._buffer):
            raise ValueError(
                "algorithm.responsesPerPrompt: groups that were started with fewer responses still wait; "
                "restore it or start a new job"
            )
