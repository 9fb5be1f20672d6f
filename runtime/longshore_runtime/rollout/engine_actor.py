"""An engine as a Ray actor. Only one thread uses the engine; calls and results pass through queues.

driver ── numbered calls ──► `EngineActor`, event loop ── commands ──► thread `engine` (`EngineThread`): steps
       ◄── stream `events` ─                           ◄── `_emit` ──
                               └── texts ──► thread of asyncio: decodes finished responses
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import ray

from longshore_runtime.backends.engine_protocol import (
    Completion,
    Engine,
    EngineStats,
    FinishReason,
    LiveResponse,
    Request,
)
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.cluster.placement import set_environment
from longshore_runtime.data.tokenizer import import_without_torch, load_tokenizer
from longshore_runtime.errors import EngineDied, WeightsUnavailable
from longshore_runtime.storage import JobStorage
from longshore_runtime.weights.shared import BroadcastGroup, SharedBucket
from longshore_runtime.weights.slices import Bucket

Command = Callable[[Engine], Any]

Batch = tuple[list[Completion], EngineStats]
"""Responses that ended, and the state of the engine at that time."""


_FETCH_LIMIT_S: Final = 300.0
"""Seconds to wait for a bucket; one that is later never arrives."""

HEARTBEAT_S: Final = 10.0
"""Seconds after which an engine that has no results sends an empty batch."""
STEP_LIMIT_S: Final = 900.0
"""Time limit of a step. First steps compile; all others take seconds at most."""


@dataclass(frozen=True)
class Loaded:
    """Bytes of a checkpoint that an engine has read; 0 of 0: it has not begun."""

    num_bytes: int = 0
    total_bytes: int = 0

    @property
    def share(self) -> float:
        """Share of the checkpoint, 0 to 1."""
        return min(1.0, self.num_bytes / self.total_bytes) if self.total_bytes else 0.0


@dataclass(frozen=True)
class _EngineCall:
    command: Command
    result: "Future[Any]"


_STOP: Final = _EngineCall(lambda engine: None, Future())


class EngineThread(threading.Thread):
    """Create an engine, step it while it has work, and run commands between two steps."""

    def __init__(self, create: Callable[[], Engine], on_completions: Callable[[Batch], None]) -> None:
        super().__init__(name="engine", daemon=True)
        self.started: Future[None] = Future()
        self.ended: Future[None] = Future()
        self.stats = EngineStats()
        """State after the last step or command. This thread replaces it as a whole, so that readers need no lock."""
        self._create = create
        self._on_completions = on_completions
        self._calls: deque[_EngineCall] = deque()
        self._called = threading.Condition()
        self._error: EngineDied | None = None
        self._step_began_s: float | None = None
        """Monotonic time at which the current step began, or None; only this thread writes it."""

    @property
    def stepping_s(self) -> float:
        """Seconds that the current step has taken; 0 between steps."""
        began_s = self._step_began_s
        return 0.0 if began_s is None else time.monotonic() - began_s

    def call(self, command: Command) -> "Future[Any]":
        """Have the thread run a command; commands run in the order of the calls."""
        return self._queue(command, self._calls.append)

    def ask(self, question: Command) -> "Future[Any]":
        """Have the thread run a command that changes nothing, before all that wait."""
        return self._queue(question, self._calls.appendleft)

    def stop(self) -> None:
        """End the thread after the commands so far."""
        with self._called:
            self._calls.append(_STOP)
            self._called.notify()

    def run(self) -> None:
        """Create the engine, then step it and run commands until `stop`."""
        try:
            engine = self._create()
        except BaseException as error:  # noqa: BLE001 - any error must reach the callers that wait
            self._fail(error)
            self.started.set_exception(error)
            return
        self.started.set_result(None)
        try:
            while self._obey(engine):
                self._step(engine)
        except Exception as error:  # noqa: BLE001 - any error must reach the callers that wait
            self._fail(error)
            return
        self.ended.set_result(None)

    def emit(self, completions: Sequence[Completion]) -> None:
        """Pass responses to `on_completions`."""
        if completions:
            self._on_completions((list(completions), self.stats))

    def _obey(self, engine: Engine) -> bool:
        """Run waiting commands, or wait for one if the engine is idle; return False if the thread should stop."""
        while (call := self._next_call(wait=not engine.has_work())) is not None:
            if call is _STOP:
                return False
            self._run_command(call, engine)
        return True

    def _run_command(self, call: _EngineCall, engine: Engine) -> None:
        try:
            outcome = call.command(engine)
        except WeightsUnavailable as error:
            self.stats = engine.stats()
            call.result.set_exception(error)
        except Exception as error:
            call.result.set_exception(_died(error))
            raise
        else:
            self.stats = engine.stats()
            call.result.set_result(outcome)

    def _next_call(self, *, wait: bool) -> _EngineCall | None:
        with self._called:
            if wait:
                self._called.wait_for(lambda: self._calls)
            return self._calls.popleft() if self._calls else None

    def _queue(self, command: Command, put: Callable[[_EngineCall], None]) -> "Future[Any]":
        call = _EngineCall(command, Future())
        with self._called:
            if self._error is not None:
                call.result.set_exception(self._error)
            else:
                put(call)
                self._called.notify()
        return call.result

    def abort(self, engine: Engine, request_ids: Sequence[str]) -> None:
        """Stop requests, which may have to wait for a step that is under way; a command calls this."""
        with self._stepping():
            completions = engine.abort(request_ids)
        self.emit(completions)

    def _step(self, engine: Engine) -> None:
        with self._stepping():
            completions = engine.step()
        self.stats = engine.stats()
        self.emit(completions)

    @contextlib.contextmanager
    def _stepping(self) -> Iterator[None]:
        self._step_began_s = time.monotonic()
        yield
        self._step_began_s = None

    def _fail(self, error: BaseException) -> None:
        died = _died(error)
        # Under the lock, so that no call is queued after the queue was emptied.
        with self._called:
            self._error = died
            waiting = [call for call in self._calls if call is not _STOP]
            self._calls.clear()
        for call in waiting:
            call.result.set_exception(died)
        self.ended.set_exception(died)


def load_weights(engine: Engine, buckets: Iterable[Bucket], policy_version: int) -> str:
    """Load weights and serve them; return their checksum. Raises ValueError for weights of another model."""
    engine.begin_weights()
    for bucket in buckets:
        engine.load_bucket(bucket)
        del bucket  # before the next one comes
    checksum = engine.finish_weights()
    engine.serve(policy_version)
    return checksum


def _fetched(buckets: Sequence[Any]) -> Iterator[Bucket]:
    """Yield buckets, given by value or as Ray references; each is fetched when the one before it has been loaded."""
    for bucket in buckets:
        yield _fetch(bucket) if isinstance(bucket, ray.ObjectRef) else bucket


def _fetch(bucket: Any) -> Bucket:
    try:
        weights: Bucket = ray.get(bucket, timeout=_FETCH_LIMIT_S)
    except ray.exceptions.RayError as error:
        raise WeightsUnavailable(f"the published weights are gone ({type(error).__name__})") from error
    return weights


def _died(error: BaseException) -> EngineDied:
    lines = str(error).strip().splitlines() or ["no message"]
    return EngineDied(f"the engine failed: {type(error).__name__}: {lines[0]}")


class EngineActor:
    """Class of a Ray actor. Calls may overtake each other, so commands are numbered from 0 and run in that order.

    Its methods run on the event loop of the actor; `EngineThread.run` and the commands run on the engine's thread, and
    `_emit` crosses over from there.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        set_environment(environment)
        self._loop = asyncio.get_event_loop()
        self._batches: asyncio.Queue[Batch] = asyncio.Queue()
        self._turns: dict[int, asyncio.Future[None]] = {}
        self._next = 0
        self._thread: EngineThread | None = None
        self._loaded = Loaded()
        self._tokenizer: Any = None

    async def start(self, spec: EngineSpec, model: str, output: str) -> None:
        """Start the engine on a checkpoint of the job's storage; raises EngineStartError."""

        def create() -> Engine:
            from longshore_runtime.backends.engines import create_engine

            storage = JobStorage.from_env(output)
            directory = storage.resolve(model)
            total_bytes = sum(path.stat().st_size for path in directory.glob("*.safetensors"))

            def on_loaded(num_bytes: int) -> None:
                self._loaded = Loaded(num_bytes, total_bytes)

            engine = create_engine(spec, directory, on_loaded)
            if spec.tokenizer is not None:
                import_without_torch()  # What the engine needs of torch is imported by now.
                self._tokenizer = load_tokenizer(storage.resolve(spec.tokenizer))
            return engine

        self._thread = EngineThread(create, self._emit)
        self._thread.start()
        await asyncio.wrap_future(self._thread.started)

    async def loaded(self) -> Loaded:
        """Return how much of the weights has been read, while `start` runs in the engine's thread."""
        return self._loaded

    async def add(self, number: int, requests: Sequence[Request]) -> None:
        """Take requests."""
        await self._in_turn(number, lambda engine: engine.add(requests))

    async def abort(self, number: int, request_ids: Sequence[str]) -> None:
        """Stop requests; they come out of `events` with reason ABORT."""
        await self._in_turn(number, lambda engine: self._running.abort(engine, request_ids))

    async def publish(self, number: int, buckets: Sequence[Any], policy_version: int) -> str:
        """Load weights; return the checksum of what was loaded. Raises WeightsUnavailable."""
        return await self._in_turn(number, lambda engine: load_weights(engine, _fetched(buckets), policy_version))

    async def begin_weights(self, number: int, channel: BroadcastGroup | None) -> None:
        """Prepare for weights that come bucket by bucket."""
        await self._in_turn(number, lambda engine: engine.begin_weights(channel))

    async def load_bucket(self, number: int, bucket: SharedBucket) -> None:
        """Load some of the weights."""
        await self._in_turn(number, lambda engine: engine.load_bucket(bucket))

    async def finish_weights(self, number: int) -> str:
        """Finish loading; return the checksum of the weights."""
        return await self._in_turn(number, lambda engine: engine.finish_weights())

    async def serve(self, number: int, policy_version: int) -> None:
        """Take requests for the loaded weights."""
        await self._in_turn(number, lambda engine: engine.serve(policy_version))

    async def sleep(self, number: int) -> None:
        """Free the accelerator."""
        await self._in_turn(number, lambda engine: engine.sleep())

    async def wake(self, number: int) -> None:
        """Take the accelerator back."""
        await self._in_turn(number, lambda engine: engine.wake())

    async def stats(self) -> EngineStats:
        """Return the state of the engine after its last step, even while it steps."""
        return self._running.stats

    async def live(self) -> list[LiveResponse]:
        """Return the lengths of all unfinished responses, after the current step or command."""
        return await asyncio.wrap_future(self._running.ask(lambda engine: engine.live()))

    @ray.method(num_returns="streaming")
    async def events(
        self, heartbeat_s: float = HEARTBEAT_S, step_limit_s: float = STEP_LIMIT_S
    ) -> AsyncIterator[Batch]:
        """Yield responses as they end, and empty batches as heartbeats; raises EngineDied when the engine fails.

        A step that takes longer than `step_limit_s` is a failure.
        """
        ended = asyncio.wrap_future(self._running.ended)
        batch = asyncio.ensure_future(self._batches.get())
        while True:
            await asyncio.wait((batch, ended), timeout=heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
            if batch.done():
                completions, stats = batch.result()
                if self._tokenizer is not None:
                    # In another thread, so that commands get through meanwhile; one batch after the other, because a
                    # tokenizer is not thread-safe.
                    completions = await asyncio.to_thread(self._with_texts, completions)
                yield completions, stats
                batch = asyncio.ensure_future(self._batches.get())
            elif ended.done():
                batch.cancel()
                ended.result()
                return
            # No thread can interrupt a step that hangs in a kernel: the process is given up, and the pool replaces it.
            elif self._running.stepping_s > step_limit_s:
                batch.cancel()
                raise EngineDied(f"the engine hangs: a step has taken more than {step_limit_s:.0f} s")
            else:
                yield [], self._running.stats

    def _with_texts(self, completions: Sequence[Completion]) -> list[Completion]:
        """Decode finished responses, once for everything that needs their text."""
        finished = [one for one in completions if one.finish_reason is not FinishReason.ABORT]
        tokens = [one.trajectory.tokens for one in finished]
        texts = iter(self._tokenizer.batch_decode(tokens, skip_special_tokens=True))
        return [one if one.finish_reason is FinishReason.ABORT else one.with_text(next(texts)) for one in completions]

    @property
    def _running(self) -> EngineThread:
        assert self._thread is not None, "start comes first"
        return self._thread

    def _emit(self, batch: Batch) -> None:
        # `asyncio.Queue` is not thread-safe, and this runs in the thread of the engine.
        self._loop.call_soon_threadsafe(self._batches.put_nowait, batch)

    async def _in_turn(self, number: int, command: Command) -> Any:
        # Ray may run calls of one caller in another order than they were sent in: a later one waits for the earlier.
        if number != self._next:
            self._turns[number] = self._loop.create_future()
            await self._turns[number]
            del self._turns[number]
        # Queued before the next number gets its turn, and awaited after: commands keep their order without waiting.
        result = self._running.call(command)
        self._next += 1
        if (following := self._turns.get(self._next)) is not None:
            following.set_result(None)
        return await asyncio.wrap_future(result)
