"""Tail batching (RollPacker, section 3): short speculative rounds, and a long one when enough draws were deferred."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from longshore.api.rollout import TailBatching as TailBatchingKnobs
from longshore.api.status import RoundKind
from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.round import Leftover, ResponseId
from longshore.policy.round_policy import BatchShape, RoundPolicy, _Plan, fresh


class TailBatching(RoundPolicy):
    """A short round starts ceil(eta P0) draws x ceil(eta R0) responses and accepts the first P0 x R0.

    What it drops waits, as whole draws and without tokens, in the long-prompt queue. When the queue holds P0 draws,
    the next round is long: the P0 oldest, R0 responses each, all accepted. So no draw is lost, and none waits forever.
    """

    def __init__(self, shape: BatchShape, cursor: DrawCursor, knobs: TailBatchingKnobs) -> None:
        super().__init__(shape, cursor)
        self._num_speculative_prompts = ceil_factor(knobs.prompt_factor, shape.num_prompts)
        self._num_speculative_responses = ceil_factor(knobs.response_factor, shape.num_responses)
        self._queue: deque[Draw] = deque()

    @property
    def num_deferred(self) -> int:
        return len(self._queue)

    def _plan(self) -> _Plan:
        if len(self._queue) >= self._shape.num_prompts:
            return self._long(self._shape.num_prompts)
        draws = self._cursor.take(self._num_speculative_prompts)
        admissions = tuple(fresh(draw, self._num_speculative_responses) for draw in draws)
        return _Plan(RoundKind.SHORT, self._shape.num_prompts, admissions)

    def _plan_drain(self) -> _Plan:
        return self._long(min(len(self._queue), self._shape.num_prompts))

    def _long(self, num_groups: int) -> _Plan:
        admissions = tuple(fresh(self._queue.popleft(), self._shape.num_responses) for _ in range(num_groups))
        return _Plan(RoundKind.LONG, num_groups, admissions)

    def _take_leftovers(self, leftovers: Sequence[Leftover]) -> tuple[ResponseId, ...]:
        self._queue.extend(leftover.draw for leftover in leftovers)
        return ()

    def _export_leftovers(self) -> list[Any]:
        return [[draw.epoch, draw.index] for draw in self._queue]

    def _load_leftovers(self, state: Sequence[Any]) -> None:
        self._queue = deque(Draw(epoch, index) for epoch, index in state)


def ceil_factor(factor: float, count: int) -> int:
    """ceil(factor * count), immune to a product such as 1.1 * 10 that lies a rounding error above its value."""
    return math.ceil(round(factor * count, 9))
