"""Background tasks of a component: started together, ended together, and retried level-triggered work."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Self

from longshore_kube.errors import ApiError, KubeError
from longshore_kube.resources import Json

_log = logging.getLogger(__name__)
_RETRY_S = 0.5
_MAX_RETRY_S = 15.0


class TaskGroup:
    """Runs coroutines alongside a block and cancels them when the block is left.

    Unlike asyncio.TaskGroup it does not wait for background work to end by itself.
    """

    def __init__(self, *coroutines: Coroutine[Any, Any, None]) -> None:
        self._coroutines = coroutines
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        for coroutine in self._coroutines:
            self.start(coroutine)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cancel()

    def start(self, coroutine: Coroutine[Any, Any, None], name: str = "") -> "asyncio.Task[None]":
        """Run one more coroutine; an unexpected exception in it is logged."""
        task = asyncio.create_task(coroutine, name=name or None)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def cancel(self) -> None:
        """Cancel everything and wait until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("%s failed", task.get_name(), exc_info=task.exception())


async def run_until_cancelled(changed: asyncio.Event, work: Callable[[], Awaitable[None]], name: str) -> None:
    """Do `work` now and after every change; while the API server refuses or is away, also ever more rarely."""
    num_failures = 0
    while True:
        changed.clear()
        try:
            await work()
            num_failures = 0
        except (KubeError, TimeoutError) as error:
            _log.warning("%s: %s", name, error)
            num_failures += 1
        retry_s = min(_RETRY_S * 2.0 ** min(num_failures - 1, 10), _MAX_RETRY_S) if num_failures else None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), retry_s)


async def each(objects: Iterable[Json], work: Callable[[Json], Awaitable[None]]) -> None:
    """Do `work` for every object, whatever happens to the others.

    Raises:
        ApiError: the last of those that came up, once every object has had its turn.
    """
    failure: ApiError | None = None
    for obj in objects:
        try:
            await work(obj)
        except ApiError as error:
            failure = error
    if failure is not None:
        raise failure
