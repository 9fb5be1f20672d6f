"""Waiting for conditions, with time limits that can be moved."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


class Signal:
    """Wakes everyone who waits now. Take `next`, look at the condition, then wait for what you took."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake all present waiters."""
        self._event.set()
        self._event = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """Set at the first notification after now."""
        return self._event


class Deadline:
    """A moment that may be set once and then only come nearer. `now` gives Unix seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._moved = Signal()
        self.at_s: float | None = None

    def within(self, grace_s: float) -> None:
        """Let the deadline be at most `grace_s` seconds from now."""
        at_s = self._now() + grace_s
        if self.at_s is None or at_s < self.at_s:
            self.at_s = at_s
            self._moved.notify()

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return self.at_s is not None and self._now() >= self.at_s

    async def wait(self) -> None:
        """Wait until the deadline has passed."""
        while not self.passed:
            left_s = None if self.at_s is None else self.at_s - self._now()
            await first(self._moved.next.wait(), timeout_s=left_s)


async def first(*waits: Awaitable[Any], timeout_s: float | None = None) -> None:
    """Wait for the first of several conditions, or for the time limit, and drop the others.

    Raises:
        Exception: what the condition that came first raised.
    """
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
