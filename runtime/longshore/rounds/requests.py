"""The requests of one round on their engines: placed, stopped, moved, and placed again where an engine is lost."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from longshore.api.round_status import RoundKind
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.policy.routing import Router
from longshore.rounds.messages import (
    AbortRequests,
    AddRequests,
    AnnounceEmptied,
    CancelEpisodes,
    EndedRequest,
    GiveTurns,
    RoundCommand,
    StartEpisodes,
)


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
    ACTING = "acting"
    """On no engine, since its environment begins its episode or answers a turn. No gate counts it."""
    ANSWERED = "answered"
    """On no engine, since a gate holds the next turn of its episode back."""
    ENDED = "ended"


class RequestEvent(StrEnum):
    """What can happen to a request."""

    PLACED = "placed"
    RETIRED = "its engine retires"
    ABORTED = "the policy aborts it"
    FINISHED = "its engine reports its end"
    STOPPED = "its engine reports that it stopped"
    LOST = "its engine is lost"
    TURNED = "its engine reports the end of a turn"
    ANSWERED = "its environment has answered"
    RESUMED = "the gates let its next turn through"
    OVER = "its environment reports the end of the episode"


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
    (_S.RUNNING, _E.TURNED): _S.ACTING,
    (_S.MOVING, _E.TURNED): _S.ACTING,
    (_S.STOPPING, _E.TURNED): _S.ENDED,
    (_S.ACTING, _E.ANSWERED): _S.ANSWERED,
    (_S.ACTING, _E.OVER): _S.ENDED,
    (_S.ACTING, _E.ABORTED): _S.ENDED,
    (_S.ANSWERED, _E.RESUMED): _S.UNPLACED,
    (_S.ANSWERED, _E.ABORTED): _S.ENDED,
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
        has_environment: Callable[[Draw], bool] = lambda draw: False,
    ) -> None:
        """Begin without requests.

        Args:
            limit_of: requests that an engine is given at once; None: any number.
            has_environment: whether responses to a draw are episodes.
        """
        self._router = Router(engines, limit_of)
        self._kind = kind
        self._emit = emit
        self._has_environment = has_environment
        self._states: dict[ResponseId, RequestState] = {}
        """States of the requests that have not ended."""
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

    def launch(self, responses: Sequence[ResponseId]) -> tuple[ResponseId, ...]:
        """Start responses; return those that are episodes, which begin in their environments."""
        episodes = [one for one in responses if self._has_environment(one.draw)]
        others = [one for one in responses if not self._has_environment(one.draw)] if episodes else responses
        self._states.update(dict.fromkeys(episodes, RequestState.ACTING))
        self._states.update(dict.fromkeys(others, RequestState.UNPLACED))
        if episodes:
            self._emit(StartEpisodes(tuple(episodes)))
        self._place(others)
        return tuple(episodes)

    def abort(self, responses: Sequence[ResponseId]) -> int:
        """Stop responses. Those on engines end when these report them; return how many others have ended at once."""
        to_stop = [one for one in responses if self._states[one] is RequestState.RUNNING]
        states = [self._change(response, RequestEvent.ABORTED) for response in responses]
        self._stop(to_stop)
        if episodes := tuple(one for one in responses if self._has_environment(one.draw)):
            self._emit(CancelEpisodes(episodes))
        return states.count(RequestState.ENDED)

    def ended(self, engine: int, requests: Sequence[EndedRequest]) -> tuple[list[EndedRequest], tuple[ResponseId, ...]]:
        """Take requests that left an engine; return those that have ended, and episodes that act after a turn.

        Reports of a lost engine are ignored.
        """
        ended: list[EndedRequest] = []
        stopped: list[ResponseId] = []
        turned: list[ResponseId] = []
        there = [request for request in requests if self._router.engine_of(request.response) == engine]
        for request in there:
            is_turn = request.finished and self._has_environment(request.response.draw)
            self._router.ended(request.response, returns=is_turn)
            match self._change(request.response, _end(request, is_turn=is_turn)):
                case RequestState.ENDED:
                    ended.append(replace(request, finished=request.finished and not is_turn))
                case RequestState.ACTING:
                    turned.append(request.response)
                case _:
                    stopped.append(request.response)
        self.num_moved += len(stopped)
        self._place(stopped)
        if turned:
            self._emit(GiveTurns(tuple(turned)))
        self._note_emptied(request.response for request in there)
        return ended, tuple(turned)

    def episode_answered(self, response: ResponseId) -> None:
        """Let the next turn of an episode wait for the gates."""
        self._change(response, RequestEvent.ANSWERED)

    def resume(self, responses: Sequence[ResponseId]) -> None:
        """Sample the next turns of episodes."""
        for response in responses:
            self._change(response, RequestEvent.RESUMED)
        self._place(responses)

    def episode_ended(self, response: ResponseId) -> None:
        """Take an episode that its environment has ended."""
        self._change(response, RequestEvent.OVER)

    def is_acting(self, response: ResponseId) -> bool:
        """Return whether something is heard of an episode; news of one that was aborted may come later."""
        return self._states.get(response) is RequestState.ACTING

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


def _end(request: EndedRequest, *, is_turn: bool) -> RequestEvent:
    if is_turn:
        return RequestEvent.TURNED
    return RequestEvent.FINISHED if request.finished else RequestEvent.STOPPED
