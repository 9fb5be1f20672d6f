"""Draws that wait between rounds: those that a round left over, and those that were looked at ahead of time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longshore.policy.draws import Draw
from longshore.policy.round import Leftover, ResponseId
from longshore.policy.round_plan import AdmittedDraw


@dataclass(frozen=True)
class WaitingDraw:
    """One draw. `finished` and `running` name its responses whose tokens are kept; without any it starts afresh."""

    draw: Draw
    num_postponed: int = 0
    """Rounds that left it over."""
    finished: tuple[int, ...] = ()
    running: tuple[int, ...] = ()

    def admission(self, num_responses: int, *, limit: int | None = None) -> AdmittedDraw:
        """Start it with `num_responses`, or continue what it has, at most `limit` responses of it."""
        if not self.finished and not self.running:
            return AdmittedDraw(self.draw, tuple(range(num_responses)))
        finished = self.finished[:limit]
        running = self.running if limit is None else self.running[: limit - len(finished)]
        return AdmittedDraw(self.draw, running, finished)


class WaitingDraws:
    """In order of arrival. With `keeps_tokens`, responses of a draw that was left over go on where they were."""

    def __init__(self, *, keeps_tokens: bool) -> None:
        self._keeps_tokens = keeps_tokens
        self._waiting: list[WaitingDraw] = []
        self._taken: dict[Draw, WaitingDraw] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def all(self) -> tuple[WaitingDraw, ...]:
        """Draws that wait, oldest first."""
        return tuple(self._waiting)

    def add(self, draws: Iterable[Draw]) -> None:
        """Add draws that nothing was sampled for yet."""
        self._waiting += [WaitingDraw(draw) for draw in draws]

    def take(self, count: int) -> tuple[WaitingDraw, ...]:
        """Take the oldest `count` of them into a round."""
        return self.pick(self._waiting[:count])

    def pick(self, chosen: Sequence[WaitingDraw]) -> tuple[WaitingDraw, ...]:
        """Take these into a round."""
        draws = {waiting.draw for waiting in chosen}
        self._waiting = [waiting for waiting in self._waiting if waiting.draw not in draws]
        self._taken.update((waiting.draw, waiting) for waiting in chosen)
        return tuple(chosen)

    def left_over(self, leftovers: Sequence[Leftover]) -> None:
        """Note that a round ended and did not accept these; whatever else took part in it is consumed."""
        back = [self._back(left) for left in leftovers]
        self._waiting += back
        self._taken = {}

    def postpone(self) -> None:
        """Note that a round went by without those that wait."""
        self._waiting = [replace(waiting, num_postponed=waiting.num_postponed + 1) for waiting in self._waiting]

    @property
    def kept(self) -> tuple[ResponseId, ...]:
        """Responses whose tokens must be kept."""
        return tuple(
            ResponseId(waiting.draw, index)
            for waiting in self._waiting
            for index in (*waiting.finished, *waiting.running)
        )

    def export_state(self) -> list[Any]:
        """Return the draws as JSON values."""
        return [
            [
                waiting.draw.epoch,
                waiting.draw.index,
                waiting.num_postponed,
                list(waiting.finished),
                list(waiting.running),
            ]
            for waiting in self._waiting
        ]

    def load_state(self, state: Sequence[Any], *, num_responses: int) -> None:
        """Undo `export_state`; raises ValueError when what waits cannot go on in the job as it is."""
        self._waiting = [
            WaitingDraw(Draw(epoch, index), num_postponed, tuple(finished), tuple(running))
            for epoch, index, num_postponed, finished, running in state
        ]
        self._taken = {}
        started = [len(waiting.finished) + len(waiting.running) for waiting in self._waiting]
        if any(started) and not self._keeps_tokens:
            raise ValueError(
                "rollout.leftovers: groups still wait with tokens of older weights; restore KeepTokens, or start "
                "a new job with another storage.output"
            )
        if any(0 < count < num_responses for count in started):
            raise ValueError(
                "algorithm.responsesPerPrompt: groups that were started with fewer responses still wait; "
                "restore it, or start a new job with another storage.output"
            )

    def _back(self, left: Leftover) -> WaitingDraw:
        before = self._taken.get(left.draw)
        num_postponed = before.num_postponed + 1 if before else 1
        if not self._keeps_tokens:
            return WaitingDraw(left.draw, num_postponed)
        return WaitingDraw(left.draw, num_postponed, left.finished, left.running)
