"""The states of a job's engines: which take requests, which are out of the round, and which must be restarted.

Pure and without threads; `EnginePool` reports what happens and starts, stops and wakes the engines.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Final


class EngineState(StrEnum):
    """States of an engine between its start and its loss."""

    STARTING = "starting"
    """Its process starts, or waits for its pod."""
    WAITING = "waiting"
    """It has started, and has not been sent the current weights."""
    LOADING = "loading"
    """It has been sent the current weights."""
    SERVING = "serving"
    """It has confirmed the current weights: it takes requests."""
    ASLEEP = "asleep"
    """It is out of the round until the engines wake: trainers or engines of another size have its accelerators."""
    LEFT_OUT = "left out"
    """Its process starts while it is out of the round."""
    MISSING = "missing"
    """It was lost out of the round, which need not know: it is started again when the engines wake."""
    LOST = "lost"
    """It was lost, and the round knows: the round asks for it again."""


class EngineEvent(StrEnum):
    """What can happen to an engine."""

    STARTED = "it has started"
    SENT = "it is sent weights"
    CONFIRMED = "it confirms the weights"
    FAILED = "it cannot load the weights"
    LEFT = "it leaves the round"
    WOKEN = "the engines wake"
    LOST = "it is lost"
    REPORTED = "its loss is reported"
    REPLACED = "it is started again"


_S, _E = EngineState, EngineEvent

TRANSITIONS: Final[Mapping[tuple[EngineState, EngineEvent], EngineState]] = {
    (_S.STARTING, _E.STARTED): _S.WAITING,
    (_S.STARTING, _E.LEFT): _S.LEFT_OUT,
    (_S.STARTING, _E.WOKEN): _S.STARTING,
    (_S.STARTING, _E.LOST): _S.LOST,
    (_S.WAITING, _E.SENT): _S.LOADING,
    (_S.WAITING, _E.LEFT): _S.ASLEEP,
    (_S.WAITING, _E.WOKEN): _S.WAITING,
    (_S.WAITING, _E.LOST): _S.LOST,
    (_S.LOADING, _E.SENT): _S.LOADING,
    (_S.LOADING, _E.CONFIRMED): _S.SERVING,
    (_S.LOADING, _E.FAILED): _S.WAITING,
    (_S.LOADING, _E.LEFT): _S.ASLEEP,
    (_S.LOADING, _E.WOKEN): _S.WAITING,
    (_S.LOADING, _E.LOST): _S.LOST,
    (_S.SERVING, _E.SENT): _S.LOADING,
    (_S.SERVING, _E.LEFT): _S.ASLEEP,
    (_S.SERVING, _E.WOKEN): _S.WAITING,
    (_S.SERVING, _E.LOST): _S.LOST,
    (_S.ASLEEP, _E.LEFT): _S.ASLEEP,
    (_S.ASLEEP, _E.WOKEN): _S.WAITING,
    (_S.ASLEEP, _E.LOST): _S.MISSING,
    (_S.LEFT_OUT, _E.STARTED): _S.ASLEEP,
    (_S.LEFT_OUT, _E.LEFT): _S.LEFT_OUT,
    (_S.LEFT_OUT, _E.WOKEN): _S.STARTING,
    (_S.LEFT_OUT, _E.LOST): _S.MISSING,
    (_S.MISSING, _E.LEFT): _S.MISSING,
    (_S.MISSING, _E.WOKEN): _S.STARTING,
    (_S.MISSING, _E.LOST): _S.MISSING,
    (_S.MISSING, _E.REPORTED): _S.LOST,
    (_S.LOST, _E.LEFT): _S.MISSING,
    (_S.LOST, _E.WOKEN): _S.LOST,
    (_S.LOST, _E.LOST): _S.LOST,
    (_S.LOST, _E.REPLACED): _S.STARTING,
    # Answers that were on their way when the engine left the round or was lost.
    (_S.ASLEEP, _E.CONFIRMED): _S.ASLEEP,
    (_S.ASLEEP, _E.FAILED): _S.ASLEEP,
    (_S.MISSING, _E.STARTED): _S.MISSING,
    (_S.MISSING, _E.CONFIRMED): _S.MISSING,
    (_S.MISSING, _E.FAILED): _S.MISSING,
    (_S.LOST, _E.STARTED): _S.LOST,
    (_S.LOST, _E.CONFIRMED): _S.LOST,
    (_S.LOST, _E.FAILED): _S.LOST,
}
"""Possible transitions; all others cannot happen."""

OUT_OF_ROUND: Final = frozenset({_S.ASLEEP, _S.LEFT_OUT, _S.MISSING})


class EngineStates:
    """States of the engines of one size, by number."""

    def __init__(self, engines: Iterable[int]) -> None:
        """Begin with engines that have all begun to start."""
        self._states = dict.fromkeys(engines, EngineState.STARTING)

    def __getitem__(self, engine: int) -> EngineState:
        return self._states[engine]

    @property
    def are_out_of_round(self) -> bool:
        """Whether no engine is in the round: a loss is reported to nobody until they wake."""
        return all(state in OUT_OF_ROUND for state in self._states.values())

    def of(self, *states: EngineState) -> list[int]:
        """Return engines in one of these states, in order."""
        return sorted(engine for engine, state in self._states.items() if state in states)

    def change(self, engine: int, event: EngineEvent) -> EngineState:
        """Process an event of an engine; return its new state."""
        state = self._states[engine] = TRANSITIONS[self._states[engine], event]
        return state

    def change_all(self, engines: Iterable[int], event: EngineEvent) -> None:
        """Process the same event of several engines."""
        for engine in engines:
            self.change(engine, event)

    def leave(self) -> None:
        """Take all engines out of the round."""
        self.change_all(list(self._states), EngineEvent.LEFT)

    def wake(self) -> list[int]:
        """Return all engines to the round, without weights; return those that must be restarted for it."""
        missing = self.of(EngineState.MISSING)
        self.change_all(list(self._states), EngineEvent.WOKEN)
        return missing

    def lose(self, engine: int) -> bool:
        """Process the loss of an engine; return whether to report it to the round, which happens once."""
        before = self._states[engine]
        return self.change(engine, EngineEvent.LOST) is EngineState.LOST and before is not EngineState.LOST

    def replace_all(self, asleep: Collection[int], starting: Collection[int]) -> None:
        """Replace all engines by those of another size, which are out of the round until they have woken or started."""
        states = dict.fromkeys(asleep, EngineState.ASLEEP) | dict.fromkeys(starting, EngineState.LEFT_OUT)
        self._states = states
