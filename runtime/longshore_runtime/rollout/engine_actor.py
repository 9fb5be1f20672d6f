"""The part of an engine in its pod: the Ray actor that takes commands, and the thread that alone uses the engine.

`remote_engine` shows how both work with the driver.
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

import ray

from longshore_runtime.backends.engine_protocol import (
    Completion,
    Engine,
    EngineStats,
    FinishReason,
    LiveResponse,
    Request,
    load_weights,
)
from longshore_runtime.backends.engine_spec import EnginePart, EngineSpec
from longshore_runtime.cluster.meeting import ReservedPort
from longshore_runtime.cluster.placement import set_environment
from longshore_runtime.data.tokenizer import import_without_torch, load_tokenizer
from longshore_runtime.errors import EngineDied, WeightsUnavailable
from longshore_runtime.rollout.engine_replies import Loaded, fetched
from longshore_runtime.storage import JobStorage

Command = Callable[[Engine], Any]

Batch = tuple[list[Completion], EngineStats]
"""Responses that ended, and the state of the engine at that time."""

HEARTBEAT_S: Final = 10.0
"""Seconds after which an engine that has no results sends an empty batch."""
STEP_LIMIT_S: Final = 900.0
"""Time limit of a step. First steps compile; all others take seconds at most."""


class EngineActor:
    """Runs commands of the driver, as a Ray actor.

    Calls may overtake each other, so commands are numbered from 0 and run in that order. Its methods run on the event
    loop of the actor; `EngineThread.run` and the commands run on the engine's thread, and `_emit` crosses over from
    there.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        set_environment(environment)
        self._loop = asyncio.get_event_loop()
        self._batches: asyncio.Queue[Batch] = asyncio.Queue()
        self._early: dict[int, asyncio.Future[None]] = {}
        """Commands by number that wait for earlier ones."""
        self._next = 0
        self._thread: EngineThread | None = None
        self._loaded = Loaded()
        self._tokenizer: Any = None
        self._reserved: ReservedPort | None = None

    async def rendezvous(self, *placed: bool) -> tuple[str, int]:
        """Return address and free port of this pod, where the parts of an engine meet. The port stays reserved.

        Args:
            placed: answers of all other parts, without which Ray makes no call: a part that has started waits for the
                others for a limited time, and their pods may come much later.
        """
        self._reserved = ReservedPort.of_this_pod()
        return self._reserved.address

    async def start(
        self, spec: EngineSpec, model: str, output: str, num_pods: int = 1, meeting: tuple[str, int] | None = None
    ) -> None:
        """Start the engine on a checkpoint of the job's storage; raises EngineStartError."""
        if meeting is not None:
            spec = replace(spec, part=EnginePart(0, num_pods, *meeting))

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
        await self._in_order(number, lambda engine: engine.add(requests))

    async def abort(self, number: int, request_ids: Sequence[str]) -> None:
        """Stop requests; they come out of `events` with reason ABORT."""
        await self._in_order(number, lambda engine: self._running.abort(engine, request_ids))

    async def publish(self, number: int, buckets: Sequence[Any], policy_version: int) -> str:
        """Load weights; return the checksum of what was loaded. Raises WeightsUnavailable."""
        return await self._in_order(number, lambda engine: load_weights(engine, fetched(buckets), policy_version))

    async def command(self, number: int, method: str, *args: Any, **options: Any) -> Any:
        """Run a method of the engine."""
        return await self._in_order(number, lambda engine: getattr(engine, method)(*args, **options))

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
        failed = asyncio.wrap_future(self._running.failed)
        batch = asyncio.ensure_future(self._batches.get())
        while True:
            await asyncio.wait((batch, failed), timeout=heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
            if batch.done():
                completions, stats = batch.result()
                if self._tokenizer is not None:
                    # In another thread, so that commands get through meanwhile; one batch after the other, because a
                    # tokenizer is not thread-safe.
                    completions = await asyncio.to_thread(self._with_texts, completions)
                yield completions, stats
                batch = asyncio.ensure_future(self._batches.get())
            elif failed.done():
                batch.cancel()
                failed.result()
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
    def _running(self) -> "EngineThread":
        assert self._thread is not None, "start comes first"
        return self._thread

    def _emit(self, batch: Batch) -> None:
        # `asyncio.Queue` is not thread-safe, and this runs in the thread of the engine.
        self._loop.call_soon_threadsafe(self._batches.put_nowait, batch)

    async def _in_order(self, number: int, command: Command) -> Any:
        # Ray may run calls of one caller in another order than they were sent in: a later one waits for the earlier.
        if number != self._next:
            self._early[number] = self._loop.create_future()
            await self._early[number]
            del self._early[number]
        # Queued before the next number, and awaited after: commands keep their order without waiting.
        result = self._running.call(command)
        self._next += 1
        if (following := self._early.get(self._next)) is not None:
            following.set_result(None)
        return await asyncio.wrap_future(result)


# Each pending call counts towards max_concurrency, also one that waits for an earlier one.
RemoteEngine: Any = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=1000)(EngineActor)


@dataclass(frozen=True)
class _EngineCall:
    command: Command
    result: "Future[Any]"


class EngineThread(threading.Thread):
    """Create an engine, step it while it has work, and run commands between two steps."""

    def __init__(self, create: Callable[[], Engine], on_completions: Callable[[Batch], None]) -> None:
        super().__init__(name="engine", daemon=True)
        self.started: Future[None] = Future()
        self.failed: Future[None] = Future()
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

    def run(self) -> None:
        """Create the engine, then step it and run commands until it fails."""
        try:
            engine = self._create()
        except BaseException as error:  # noqa: BLE001 - any error must reach the callers that wait
            self._fail(error)
            self.started.set_exception(error)
            return
        self.started.set_result(None)
        try:
            while True:
                self._obey(engine)
                self._step(engine)
        except Exception as error:  # noqa: BLE001 - any error must reach the callers that wait
            self._fail(error)

    def _emit(self, completions: Sequence[Completion]) -> None:
        """Pass responses to `on_completions`."""
        if completions:
            self._on_completions((list(completions), self.stats))

    def _obey(self, engine: Engine) -> None:
        """Run waiting commands, or wait for one if the engine is idle."""
        while (call := self._next_call(wait=not engine.has_work())) is not None:
            self._run_command(call, engine)

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
        self._emit(completions)

    def _step(self, engine: Engine) -> None:
        with self._stepping():
            completions = engine.step()
        self.stats = engine.stats()
        self._emit(completions)

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
            waiting = list(self._calls)
            self._calls.clear()
        for call in waiting:
            call.result.set_exception(died)
        self.failed.set_exception(died)


def _died(error: BaseException) -> EngineDied:
    lines = str(error).strip().splitlines() or ["no message"]
    return EngineDied(f"the engine failed: {type(error).__name__}: {lines[0]}")
