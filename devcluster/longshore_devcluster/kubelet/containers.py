"""The kubelet's handle on one container instance: the shim process that keeps it."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from longshore_devcluster.kubelet.warm import Keeper, WarmInterpreter

_SHIM = Path(__file__).with_name("shim.py")
KILLED = 128 + signal.SIGKILL


class StartError(Exception):
    """The main process could not be started; the message says why."""


@dataclass(frozen=True)
class Spec:
    """What to run: program and arguments, whole environment, working directory and where its output goes.

    `log` is the log file of a container; an exec gives `stdio` instead: three inherited file descriptors, which the
    shim hands to the process.
    """

    argv: Sequence[str]
    env: dict[str, str]
    cwd: str
    log: str = ""
    stdio: Sequence[int] = field(default=())


async def _new_keeper(inherited: Sequence[int]) -> Keeper:
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(_SHIM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=tuple(inherited),
            start_new_session=True,
            env={},
        )
    except OSError as error:
        raise StartError(f"starting the container's keeper: {error}") from error


class ContainerProcess:
    """A running container instance, or an exec into one."""

    def __init__(self, shim: Keeper, on_log: Callable[[], None] | None) -> None:
        self._shim = shim
        self._on_log = on_log
        self._started: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._exit_code: int | None = None
        self._follower = asyncio.create_task(self._follow())

    @classmethod
    async def start(
        cls, spec: Spec, on_log: Callable[[], None] | None = None, warm: WarmInterpreter | None = None
    ) -> "ContainerProcess":
        """Start the main process, as a fork of `warm` if that does as well; `on_log` is called after new log lines.

        Raises:
            StartError: the program cannot be started.
        """
        forked = await warm.keeper() if warm is not None and warm.fits(spec.argv, spec.env) else None
        process = cls(forked or await _new_keeper(spec.stdio), on_log)
        body = asdict(spec)
        body["stdio"] = list(spec.stdio) or None
        process._send(body)
        try:
            await asyncio.shield(process._started)
        except asyncio.CancelledError:
            process.kill()
            raise
        except StartError:
            await process.wait()
            raise
        return process

    @property
    def pid(self) -> int:
        """The process id of the main process."""
        return self._started.result()[0]

    @property
    def keeper(self) -> int:
        """The process id of the shim, of which every process of the container is a descendant."""
        return self._started.result()[1]

    async def wait(self) -> int:
        """Wait until the main process and all its descendants have ended; the exit code, 128 + N after signal N."""
        await asyncio.shield(self._follower)
        return KILLED if self._exit_code is None else self._exit_code

    @property
    def lost(self) -> bool:
        """Whether the shim ended without a word, so that descendants of the main process may live on."""
        return self.ended and self._exit_code is None

    def signal(self, number: int) -> None:
        """Send a signal to the main process."""
        self._send({"signal": int(number)})

    def kill(self) -> None:
        """End the main process and every descendant at once."""
        self._send({"kill": True})

    @property
    def ended(self) -> bool:
        """Whether nothing of the container is running any more."""
        return self._follower.done()

    def _send(self, command: dict[str, Any]) -> None:
        stdin = self._shim.stdin
        assert stdin is not None
        if not stdin.is_closing():
            stdin.write(json.dumps(command).encode() + b"\n")

    async def _follow(self) -> None:
        assert self._shim.stdout is not None
        with suppress(ConnectionResetError):  # A keeper that was killed has left a command unread.
            async for line in self._shim.stdout:
                self._note(json.loads(line))
        await self._shim.wait()
        if not self._started.done():
            self._started.set_exception(StartError("the container's keeper ended before the process started"))
        assert self._shim.stdin is not None
        self._shim.stdin.close()
        with suppress(BrokenPipeError, ConnectionResetError):
            await self._shim.stdin.wait_closed()

    def _note(self, event: dict[str, Any]) -> None:
        if "pid" in event:
            self._started.set_result((event["pid"], event["keeper"]))
        elif "error" in event:
            self._started.set_exception(StartError(event["error"]))
        elif "exit_code" in event:
            code = event["exit_code"]
            self._exit_code = code if code >= 0 else 128 - code
        elif self._on_log is not None:
            self._on_log()
