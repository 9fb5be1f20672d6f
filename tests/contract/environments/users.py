"""What a user writes: environments for the tests, good and bad ones."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from typing import Any, Final

import numpy

PIECE_BYTES: Final = 100_000_000
LOCK: Final = asyncio.Lock()
imported_by: Final = os.getpid()
STATE: Final[list[int]] = []


class Counter:
    """A counter that the model raises to the goal of its row."""

    def __init__(self) -> None:
        self.value = 0
        self.goal = 0

    def reset(self, goal: int, **row: Any) -> str:
        """Begin at zero."""
        self.goal = goal
        return f"Reach {goal}. {sorted(row)}"

    def add(self, number: int) -> int:
        """Add to the counter.

        Args:
            number: What to add.

        Returns:
            The new value.
        """
        self.value += number
        STATE.append(number)
        return self.value

    def state(self) -> list[int]:
        """Return all that was added, as the module knows it."""
        return STATE

    def where(self) -> str:
        """Return which process runs, and which has imported."""
        return f"{os.getpid()} {imported_by}"

    def get_reward(self) -> float:
        """Return whether the goal is reached."""
        return float(self.value == self.goal)


class Dice:
    """Random numbers from everywhere, in a conversation."""

    def __init__(self) -> None:
        self.start = random.random()

    def reset(self) -> str:
        """Throw once."""
        return f"{self.start} {random.random()} {numpy.random.rand()} {list({'a', 'b', 'c', 'd'})}"

    def reply(self, message: str) -> str | None:
        """Throw again, until the model says stop."""
        return None if message == "stop" else str(random.random())


class Asynchronous:
    """Tools that wait for each other, with a lock of the module."""

    async def reset(self) -> None:
        """Begin."""
        self.waiting = asyncio.Event()

    async def wait(self) -> str:
        """Wait for the other tool."""
        await self.waiting.wait()
        async with LOCK:
            return "waited"

    async def notify(self) -> str:
        """End the wait of the other tool."""
        async with LOCK:
            self.waiting.set()
        return "notified"

    async def get_reward(self) -> float:
        """Return one."""
        return 1.0


class Hostile:
    """Does what the model asks for."""

    def reset(self, at: str = "") -> None:
        """Do it at once."""
        if at:
            self.do(at)

    def fine(self) -> str:
        """Return at once."""
        return "fine"

    def do(self, what: str) -> str:
        """Do something.

        Args:
            what: What to do.
        """
        match what:
            case "hang":
                time.sleep(3_600)
            case "hang, deaf to signals":
                for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
                    signal.signal(number, signal.SIG_IGN)
                while True:
                    pass
            case "exit":
                os._exit(3)
            case "be killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "sys.exit":
                sys.exit(4)
            case "fork and return twice":
                os.fork()
            case "start a program":
                return str(subprocess.Popen(["sleep", "3600"]).pid)
            case "start a daemon":
                program = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
                program += "print(os.getpid(), flush=True)\nos.close(1)\ntime.sleep(3600)"
                return subprocess.check_output([sys.executable, "-c", program], text=True)
            case "flood":
                for _ in range(100):
                    os.write(1, b"x" * 1_000_000)
            case "close everything":
                os.closerange(0, 256)
                time.sleep(3_600)
            case "return 100 MB":
                return "x" * PIECE_BYTES
            case "read":
                return sys.stdin.read() + subprocess.check_output(["cat"], text=True)
            case "raise":
                raise ValueError("that was wrong")
            case "recurse":
                return self.do(what)
            case "surrogate":
                return "\udc80"
            case "write without end":
                write(PIECE_BYTES * b"x")
            case _ if what.startswith("write"):
                write(what.removeprefix("write ").encode())
        return "done"


def write(data: bytes) -> None:
    """Write to all files, among which is the pipe of answers."""
    for file in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(file, data)


def double(number: int) -> int:
    """Double a number.

    Args:
        number: Any number.
    """
    return 2 * number


async def halve(number: int) -> float:
    """Halve a number.

    Args:
        number: Any number.
    """
    return number / 2


class Undescribed:
    """An environment with a tool that nobody can describe to a model."""

    def reset(self) -> None:
        """Begin."""

    def act(self, thing):  # type: ignore[no-untyped-def]
        """Do something with a thing of unknown type."""


class WithoutReset:
    """No environment."""


NOTHING: Final = 3


class Talker:
    """Says as much as its row wants."""

    def reset(self, length: int) -> None:
        """Begin."""
        self.length = length

    def reply(self, message: str) -> str:
        """Say it."""
        return "x" * self.length


class BrokenReply:
    """Fails at its first answer."""

    def reset(self, why: str) -> None:
        """Begin."""
        self.why = why

    def reply(self, message: str) -> str:
        """Fail."""
        raise ValueError(self.why)


class Sleeper:
    """Answers never."""

    def reset(self, **row: Any) -> None:
        """Begin."""

    def reply(self, message: str) -> str:
        """Sleep."""
        time.sleep(3_600)
        return "late"
