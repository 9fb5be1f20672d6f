"""The engines of a job on the virtual clock."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from longshore.policy.round import ResponseId
from longshore.rounds.messages import EndedRequest
from longshore.sim.engine import EngineShape, SimEngine, SimRequest
from longshore.sim.events import EventQueue
from longshore.sim.result import SpanRecorder, Work


@dataclass
class _Member:
    engine: SimEngine
    gpus: tuple[int, ...]
    num_changes: int = 0
    """Numbers its wake-ups: only the newest counts."""
    busy_since_s: float | None = None


class SimFleet:
    """Engines by number, each on GPUs of its own; tells `on_ended` what leaves them."""

    def __init__(
        self, shape: EngineShape, gpus: Sequence[tuple[int, ...]], queue: EventQueue, recorder: SpanRecorder
    ) -> None:
        self.kv_capacity_tokens = shape.kv_capacity_tokens
        """Tokens that the KV cache of each engine holds."""
        self._members = [_Member(SimEngine(shape), engine_gpus) for engine_gpus in gpus]
        self._queue = queue
        self._recorder = recorder
        self.on_ended: Callable[[int, list[EndedRequest]], None] = lambda engine, ended: None

    @property
    def numbers(self) -> tuple[int, ...]:
        """Engines by number."""
        return tuple(range(len(self._members)))

    @property
    def engines(self) -> Mapping[int, SimEngine]:
        """The engines themselves."""
        return {number: member.engine for number, member in enumerate(self._members)}

    def engine(self, number: int) -> SimEngine:
        """Return the engine with this number."""
        return self._members[number].engine

    @property
    def gpus(self) -> Mapping[int, tuple[int, ...]]:
        """GPUs by engine."""
        return {number: member.gpus for number, member in enumerate(self._members)}

    @property
    def num_preemptions(self) -> int:
        """Preemptions of all engines since they were built."""
        return sum(member.engine.num_preemptions for member in self._members)

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens that all engines sampled since they were built."""
        return sum(member.engine.num_sampled_tokens for member in self._members)

    def add(self, number: int, requests: Iterable[SimRequest]) -> None:
        """Start requests on an engine."""
        member = self._members[number]
        if member.busy_since_s is None:
            member.busy_since_s = self._queue.now_s
        member.engine.add(requests, self._queue.now_s)
        self._arrange(number)

    def abort(self, number: int, responses: Iterable[ResponseId]) -> None:
        """Stop requests; they come back through `on_ended`."""
        self._members[number].engine.abort(responses, self._queue.now_s)
        self._arrange(number)

    def forget_prefixes(self) -> None:
        """Forget what all engines have cached, because the weights changed."""
        for member in self._members:
            member.engine.forget_prefixes()

    def _arrange(self, number: int) -> None:
        member = self._members[number]
        member.num_changes += 1
        wake_s = member.engine.wake_s()
        if wake_s is not None:
            self._queue.at(wake_s, partial(self._wake, number, member.num_changes))

    def _wake(self, number: int, change: int) -> None:
        member = self._members[number]
        if change != member.num_changes:
            return
        ended = member.engine.advance()
        if member.engine.is_idle and member.busy_since_s is not None:
            self._recorder.busy(member.gpus, Work.ROLLOUT, member.busy_since_s, self._queue.now_s, f"engine {number}")
            member.busy_since_s = None
        self._arrange(number)
        if ended:
            self.on_ended(number, ended)
