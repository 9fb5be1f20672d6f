"""What every round policy offers to its drivers: the Ray runtime, the simulator and the tests."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longshore.api.status import RoundKind
from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.round import (
    AcceptedGroup,
    Admission,
    Decision,
    Leftover,
    ResponseFinished,
    ResponseId,
    Round,
)


@dataclass(frozen=True)
class BatchShape:
    """P0 and R0."""

    num_prompts: int
    num_responses: int


@dataclass(frozen=True)
class RoundStart:
    """A round begins: its kind and what to launch first."""

    kind: RoundKind
    decision: Decision


@dataclass(frozen=True)
class RoundEnd:
    """A round is over: its batch, and the responses whose tokens the next rounds continue from."""

    kind: RoundKind
    accepted: tuple[AcceptedGroup, ...]
    deferred: tuple[Draw, ...]
    """Draws that this round dropped and that wait for a later one."""
    kept: tuple[ResponseId, ...]
    """Responses of deferred draws whose tokens must be kept; the tokens of all others are dropped."""


@dataclass(frozen=True)
class _Plan:
    kind: RoundKind
    num_groups: int
    admissions: tuple[Admission, ...]


class RoundPolicy(ABC):
    """Admission, acceptance and leftovers of a job's rounds. Pure: the same calls give the same decisions.

    Between rounds the state can be exported and loaded; the running round itself is never part of it, since a
    restart begins the round again.
    """

    def __init__(self, shape: BatchShape, cursor: DrawCursor) -> None:
        self._shape = shape
        self._cursor = cursor
        self._round: Round | None = None
        self._kind = RoundKind.FULL

    def start_round(self, *, draining: bool = False) -> RoundStart:
        """Begin a round; `draining` admits only what waits, as the last rounds of a job do."""
        assert self._round is None, "the last round has not ended"
        plan = self._plan_drain() if draining else self._plan()
        self._round = Round(plan.num_groups, self._shape.num_responses)
        self._kind = plan.kind
        return RoundStart(plan.kind, self._round.admit(plan.admissions))

    def responses_finished(self, events: Sequence[ResponseFinished]) -> Decision:
        """Responses ended."""
        return self._running.finish(events)

    def group_rejected(self, draw: Draw) -> Decision:
        """An accepted group cannot be trained on: a fresh draw replaces it in this round, so the batch is exact."""
        self._running.reject(draw)
        replacement = self._cursor.take(1)[0]
        return self._running.admit([fresh(replacement, self._shape.num_responses)])

    def end_round(self) -> RoundEnd:
        """Close a round whose batch is complete."""
        running = self._running
        assert running.ended, "the batch of the round is not complete"
        self._round = None
        kept = self._take_leftovers(running.leftovers)
        deferred = tuple(leftover.draw for leftover in running.leftovers)
        return RoundEnd(self._kind, running.accepted, deferred, kept)

    @property
    @abstractmethod
    def num_deferred(self) -> int:
        """Draws that wait for a later round."""

    def export_state(self) -> dict[str, Any]:
        """State between two rounds, as JSON values."""
        assert self._round is None, "state is exported between rounds"
        return {
            "strategy": type(self).__name__,
            "cursor": self._cursor.export_state(),
            "leftovers": self._export_leftovers(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `export_state` was called; raises ValueError when the job has become another one."""
        if state["leftovers"] and state["strategy"] != type(self).__name__:
            raise ValueError(
                f"rollout.strategy: {len(state['leftovers'])} draws still wait under {state['strategy']}, which "
                f"{type(self).__name__} cannot continue; restore the strategy or start a new job"
            )
        self._cursor.load_state(state["cursor"])
        self._load_leftovers(state["leftovers"])

    @abstractmethod
    def _plan(self) -> _Plan: ...

    @abstractmethod
    def _plan_drain(self) -> _Plan: ...

    @abstractmethod
    def _take_leftovers(self, leftovers: Sequence[Leftover]) -> tuple[ResponseId, ...]: ...

    @abstractmethod
    def _export_leftovers(self) -> list[Any]: ...

    @abstractmethod
    def _load_leftovers(self, state: Sequence[Any]) -> None: ...

    @property
    def _running(self) -> Round:
        assert self._round is not None, "no round is running"
        return self._round


def fresh(draw: Draw, num_responses: int) -> Admission:
    """Admission of a draw from its beginning."""
    return Admission(draw, tuple(range(num_responses)))
