"""The requests of one round on their engines: placed, stopped, moved, and placed anew where an engine is lost."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from longshore.api.runtime_status import RoundKind
from longshore.policy.round import ResponseId
from longshore.policy.routing import Router
from longshore_runtime.types import Completion, EngineStats, FinishReason, Request


class Engines(Protocol):
    """The engines of a job; events go to the queue that they were given."""

    def alive(self) -> Sequence[int]:
        """Engines that take requests."""

    def add(self, engine: int, requests: Sequence[Request]) -> None:
        """Start requests; does not wait."""

    def abort(self, engine: int, request_ids: Sequence[str]) -> None:
        """Stop requests; they come back as completions with reason ABORT; does not wait."""

    def stats(self) -> Mapping[int, EngineStats]:
        """State of every engine that is alive."""

    def replace(self, engine: int) -> None:
        """Start a lost engine anew; EngineJoined follows; does not wait."""


class Dispatch:
    """One use per round. Every launched response ends once; that it moves from one engine to another is no end."""

    def __init__(
        self,
        engines: Engines,
        limit_of: Callable[[int], int | None],
        request_of: Callable[[ResponseId, Completion | None], Request],
        kept: Mapping[ResponseId, Completion],
    ) -> None:
        """`kept`: tokens that responses continue from."""
        self._engines = engines
        self._router = Router(engines.alive(), limit_of)
        self._request_of = request_of
        self._tokens = dict(kept)
        self._kind = RoundKind.FULL
        self._running: dict[str, ResponseId] = {}
        self._aborting: set[ResponseId] = set()
        self._moving: set[ResponseId] = set()
        """Stopped on an engine that retires, to go on elsewhere with the tokens that they have."""
        self._retired: frozenset[int] = frozenset()
        self._draining: set[ResponseId] = set()
        """On engines that retire."""
        self._on_drained: Callable[[], None] | None = None
        self._unplaced: list[ResponseId] = []
        self.num_moved = 0
        """Responses that went on elsewhere."""

    @property
    def engines(self) -> tuple[int, ...]:
        """Engines that requests can go to."""
        return self._router.engines

    @property
    def is_idle(self) -> bool:
        """Whether every response that was launched has ended."""
        return not self._running

    def launch(self, responses: Sequence[ResponseId], kind: RoundKind) -> None:
        """Start responses of a round of this kind."""
        self._kind = kind
        for response in responses:
            self._running[str(response)] = response
        self._place(responses)

    def abort(self, responses: Sequence[ResponseId]) -> None:
        """Stop responses. Those that run come back with reason ABORT; those that no engine has are gone at once."""
        by_engine: dict[int, list[str]] = {}
        for response in responses:
            engine = self._router.engine_of(response)
            if engine is None:
                self._running.pop(str(response), None)
            else:
                self._aborting.add(response)
                by_engine.setdefault(engine, []).append(str(response))
        self._unplaced = [response for response in self._unplaced if str(response) in self._running]
        for engine, request_ids in by_engine.items():
            self._engines.abort(engine, request_ids)

    def ended(self, completion: Completion) -> ResponseId | None:
        """An engine gave a response back; None: that is no end of it, or nobody waits for it."""
        response = self._running.get(completion.request_id)
        if response is None:
            return None
        self._router.ended(response)
        if self._moves_on(response, completion):
            self._tokens[response] = completion
            self.num_moved += 1
            self._place([response])
            response_ended = None
        else:
            del self._running[completion.request_id]
            response_ended = response
        self._left(response)
        return response_ended

    def lost(self, engine: int) -> None:
        """An engine is gone: sample again elsewhere what ran there, except what was being stopped anyway."""
        orphans = self._router.lost(engine)
        for response in self._aborting.intersection(orphans):
            self._running.pop(str(response), None)
        self._place([response for response in orphans if str(response) in self._running])
        for response in orphans:
            self._left(response)

    def joined(self, engine: int) -> None:
        """An engine is there (again); one that has retired stays away."""
        if engine in self._retired:
            return
        self._router.joined(engine)
        waiting, self._unplaced = self._unplaced, []
        self._place(waiting)

    def retire(self, engines: Collection[int], on_drained: Callable[[], None]) -> None:
        """Give these engines nothing more; what runs there goes on elsewhere. `on_drained`: nothing is left on them."""
        assert self._on_drained is None, "engines retire once in a round"
        self._on_drained = on_drained
        self._retired = frozenset(engines)
        orphans = {engine: self._router.retire(engine) for engine in engines}
        self._draining.update(response for responses in orphans.values() for response in responses)
        for engine, responses in orphans.items():
            moving = [response for response in responses if response not in self._aborting]
            self._moving.update(moving)
            if moving:
                self._engines.abort(engine, [str(response) for response in moving])
        self._look_drained()

    def _moves_on(self, response: ResponseId, completion: Completion) -> bool:
        was_moving = response in self._moving
        self._moving.discard(response)
        return was_moving and completion.finish_reason is FinishReason.ABORT and response not in self._aborting

    def _left(self, response: ResponseId) -> None:
        self._moving.discard(response)
        if response in self._draining:
            self._draining.discard(response)
            self._look_drained()

    def _look_drained(self) -> None:
        if not self._draining and self._on_drained is not None:
            on_drained, self._on_drained = self._on_drained, None
            on_drained()

    def _place(self, responses: Sequence[ResponseId]) -> None:
        if not self._router.has_engines:
            self._unplaced += responses
            return
        for engine, placed in self._router.place(responses, self._kind).items():
            self._engines.add(engine, [self._request_of(response, self._tokens.get(response)) for response in placed])
