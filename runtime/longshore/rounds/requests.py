"""The requests of one round on their engines: placed, stopped, moved, and placed again where an engine is lost."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from longshore.api.round_status import RoundKind
from longshore.policy.round import ResponseId
from longshore.policy.routing import Router
from longshore.rounds.messages import AbortRequests, AddRequests, AnnounceEmptied, EndedRequest, RoundCommand


class RequestState(StrEnum):
    """Where a request is between its launch and its end."""

    UNPLACED = "unplaced"
    """On no engine, since there is none."""
    RUNNING = "running"
    """An engine has it."""
    MOVING = "moving"
    """Its engine retires and has been asked to stop it: it continues on another one with the tokens that it has."""
    STOPPING = "stopping"
    """It is not needed any more, and its engine has been asked to stop it."""
    ENDED = "ended"


class RequestEvent(StrEnum):
    """What can happen to a request."""

    PLACED = "placed"
    RETIRED = "its engine retires"
    ABORTED = "the policy aborts it"
    FINISHED = "its engine reports its end"
    STOPPED = "its engine reports that it stopped"
    LOST = "its engine is lost"


_S, _E = RequestState, RequestEvent

TRANSITIONS: Final[Mapping[tuple[RequestState, RequestEvent], RequestState]] = {
    (_S.UNPLACED, _E.PLACED): _S.RUNNING,
    (_S.UNPLACED, _E.ABORTED): _S.ENDED,
    (_S.RUNNING, _E.FINISHED): _S.ENDED,
    (_S.RUNNING, _E.ABORTED): _S.STOPPING,
    (_S.RUNNING, _E.RETIRED): _S.MOVING,
    (_S.RUNNING, _E.LOST): _S.UNPLACED,
    # An engine that stops a request by itself, as vLLM does when it cannot hold it: it is sampled on.
    (_S.RUNNING, _E.STOPPED): _S.UNPLACED,
    (_S.MOVING, _E.STOPPED): _S.UNPLACED,
    (_S.MOVING, _E.FINISHED): _S.ENDED,
    (_S.MOVING, _E.ABORTED): _S.STOPPING,
    (_S.MOVING, _E.LOST): _S.UNPLACED,
    (_S.STOPPING, _E.STOPPED): _S.ENDED,
    (_S.STOPPING, _E.FINISHED): _S.ENDED,
    (_S.STOPPING, _E.RETIRED): _S.STOPPING,
    (_S.STOPPING, _E.LOST): _S.ENDED,
}
"""What is not in here cannot happen. An unplaced request is placed at once if there is an engine."""


class Requests:
    """One use per round. Every launched response ends exactly once; a move to another engine is not an end."""

    def __init__(
        self,
        engines: Sequence[int],
        kind: RoundKind,
        limit_of: Callable[[int], int | None],
        emit: Callable[[RoundCommand], None],
    ) -> None:
        """`limit_of`: requests that an engine is given at once; None: any number."""
        self._router = Router(engines, limit_of)
        self._kind = kind
        self._emit = emit
        self._states: dict[ResponseId, RequestState] = {}
        """Of those that have not ended."""
        self._retired: frozenset[int] = frozenset()
        self._emptying: set[ResponseId] | None = None
        """What still runs on engines that retire; None: none retires, or the driver knows that they are empty."""
        self.num_moved = 0
        """Responses that continued on another engine."""

    @property
    def engines(self) -> tuple[int, ...]:
        """Engines that requests can go to."""
        return self._router.engines

    @property
    def is_idle(self) -> bool:
        """Whether every response that was launched has ended."""
        return not self._states

    def engine_of(self, response: ResponseId) -> int | None:
        """Return the engine that a response is on."""
        return self._router.engine_of(response)

    def launch(self, responses: Sequence[ResponseId]) -> None:
        """Start responses."""
        self._states.update(dict.fromkeys(responses, RequestState.UNPLACED))
        self._place(responses)

    def abort(self, responses: Sequence[ResponseId]) -> None:
        """Stop responses. Those on engines end when these report them; the others are gone at once."""
        to_stop = [one for one in responses if self._states[one] is RequestState.RUNNING]
        for response in responses:
            self._change(response, RequestEvent.ABORTED)
        self._stop(to_stop)

    def ended(self, engine: int, requests: Sequence[EndedRequest]) -> list[EndedRequest]:
        """Take requests that left an engine; return those that have ended. Reports of a lost engine are ignored."""
        ended, stopped = [], []
        there = [request for request in requests if self._router.engine_of(request.response) == engine]
        for request in there:
            self._router.ended(request.response)
            event = RequestEvent.FINISHED if request.finished else RequestEvent.STOPPED
            if self._change(request.response, event) is RequestState.ENDED:
                ended.append(request)
            else:
                stopped.append(request.response)
        self.num_moved += len(stopped)
        self._place(stopped)
        self._note_emptied(request.response for request in there)
        return ended

    def lost(self, engine: int) -> None:
        """Sample again elsewhere what ran on a lost engine, except what was being stopped anyway."""
        orphans = self._router.lost(engine)
        states = [(response, self._change(response, RequestEvent.LOST)) for response in orphans]
        self._place([response for response, state in states if state is RequestState.UNPLACED])
        self._note_emptied(orphans)

    def joined(self, engine: int) -> None:
        """Place requests on an engine that is there (again), unless it has retired in this round."""
        if engine in self._retired:
            return
        self._router.joined(engine)
        self._place([response for response, state in self._states.items() if state is RequestState.UNPLACED])

    def retire(self, engines: Collection[int]) -> None:
        """Give these engines nothing more; what runs there continues elsewhere."""
        assert not self._retired, "engines retire once in a round"
        self._retired = frozenset(engines)
        orphans = [response for engine in engines for response in self._router.retire(engine)]
        self._emptying = set(orphans)
        self._stop([one for one in orphans if self._change(one, RequestEvent.RETIRED) is RequestState.MOVING])

    def announce_emptied(self) -> None:
        """Tell the driver, once, that nothing is left on the engines that have retired."""
        if self._emptying is not None and not self._emptying:
            self._emptying = None
            self._emit(AnnounceEmptied())

    def _change(self, response: ResponseId, event: RequestEvent) -> RequestState:
        state = TRANSITIONS[self._states[response], event]
        if state is RequestState.ENDED:
            del self._states[response]
        else:
            self._states[response] = state
        return state

    def _stop(self, responses: Sequence[ResponseId]) -> None:
        """Stop requests; the only place that does so, for any reason."""
        by_engine: dict[int, list[ResponseId]] = {}
        for response in responses:
            engine = self._router.engine_of(response)
            assert engine is not None, "it runs somewhere"
            by_engine.setdefault(engine, []).append(response)
        for engine, stopped in by_engine.items():
            self._emit(AbortRequests(engine, tuple(stopped)))

    def _place(self, responses: Sequence[ResponseId]) -> None:
        if not self._router.has_engines:
            return
        for engine, placed in self._router.place(responses, self._kind).items():
            for response in placed:
                self._change(response, RequestEvent.PLACED)
            self._emit(AddRequests(engine, tuple(placed)))

    def _note_emptied(self, responses: Iterable[ResponseId]) -> None:
        if self._emptying is not None:
            self._emptying.difference_update(responses)
