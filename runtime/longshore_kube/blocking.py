"""The client for code without an event loop: its requests run on a loop in a thread of their own."""

import asyncio
import atexit
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from longshore_kube.access import Access
from longshore_kube.client import Client

T = TypeVar("T")


class Blocking:
    """A `Client` for any number of threads. Nothing is connected before the first call."""

    def __init__(self, access: Access, user_agent: str) -> None:
        self.access = access
        self._client = Client(access, user_agent)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def call(self, work: Callable[[Client], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
        """Do `work` with the client and wait for its result.

        Raises:
            TimeoutError: it took longer, and was given up.
        """
        return _result(work(self._client), self._opened(), timeout_s)

    def iterate(self, work: Callable[[Client], AsyncGenerator[T, None]], timeout_s: float | None = None) -> Iterator[T]:
        """What `work` yields, until `timeout_s` is over or another thread calls `close`."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        loop, items = self._opened(), work(self._client)
        try:
            while True:
                yield _result(_next(items), loop, None if end_s is None else max(0.0, end_s - time.monotonic()))
        except (StopAsyncIteration, TimeoutError, CancelledError):
            return
        finally:
            # A step that was given up closes the generator on its own way out.
            with suppress(RuntimeError, CancelledError):
                _result(_close(items), loop)

    def close(self) -> None:
        """Let go of every connection. Calls of other threads end with `CancelledError`."""
        atexit.unregister(self.close)
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), loop).result()
            loop.call_soon_threadsafe(loop.stop)

    def _opened(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(loop,), name="kube-client", daemon=True).start()
                try:
                    asyncio.run_coroutine_threadsafe(self._client.__aenter__(), loop).result()
                except BaseException:
                    loop.call_soon_threadsafe(loop.stop)
                    raise
                self._loop = loop
                atexit.register(self.close)
            return self._loop

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.__aexit__(None, None, None)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _result(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop, timeout_s: float | None = None) -> T:
    try:
        future = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:
        # The loop is closed.
        work.close()
        raise CancelledError from None
    try:
        return future.result(timeout_s)
    except BaseException:
        # Nobody waits any more, be it for the time limit or for Ctrl-C.
        future.cancel()
        raise


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()
