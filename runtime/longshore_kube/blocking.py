"""The client for code without an event loop: its requests run on a loop in a separate thread."""

import asyncio
import atexit
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Final, TypeVar

from longshore_kube.access import Access
from longshore_kube.client import Client

T = TypeVar("T")

_CANCEL_AGAIN_S: Final = 0.1


class Blocking:
    """A `Client` for any number of threads."""

    def __init__(self, access: Access, user_agent: str) -> None:
        self.access = access
        self._client = Client(access, user_agent)
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        """Held while work is handed over, so that none comes after the last."""
        self._is_closed = False
        threading.Thread(target=self._run, name="kube-client", daemon=True).start()
        atexit.register(self.close)
        self.call(Client.__aenter__)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called: nothing can be asked any more."""
        return self._is_closed

    def call(self, work: Callable[[Client], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
        """Do `work` with the client and wait for its result.

        Raises:
            TimeoutError: it took longer, and was given up.
            CancelledError: another thread called `close`.
        """
        return self._result(work(self._client), timeout_s)

    def iterate(self, work: Callable[[Client], AsyncGenerator[T, None]], timeout_s: float | None = None) -> Iterator[T]:
        """Yield what `work` yields, until `timeout_s` is over or another thread calls `close`."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        items = work(self._client)
        try:
            while True:
                yield self._result(_next(items), None if end_s is None else max(0.0, end_s - time.monotonic()))
        except (StopAsyncIteration, TimeoutError, CancelledError):
            return
        finally:
            # A step that was given up closes the generator on its own way out.
            with suppress(RuntimeError, CancelledError):
                self._result(_close(items))

    def close(self) -> None:
        """Let go of every connection, and end what other threads wait for."""
        atexit.unregister(self.close)
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        if is_first:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _result(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        with self._lock:
            if self._is_closed:
                work.close()
                raise CancelledError
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            # Nobody waits any more, be it for the time limit or for Ctrl-C.
            future.cancel()
            raise

    async def _end(self) -> None:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            # One whose answer comes at this very moment may go on, as if nobody had cancelled it.
            ended, _ = await asyncio.wait(others, timeout=_CANCEL_AGAIN_S)
            await asyncio.gather(*ended, return_exceptions=True)  # Nobody else looks at how they have ended.
        await self._client.__aexit__()


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()
