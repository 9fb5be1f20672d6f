"""Processes of environments as the pod's event loop sees them: one template each, and a fork for every episode."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from longshore.api import contract
from longshore.api.environment import Environment
from longshore_runtime.environments import own_server
from longshore_runtime.environments.pod_protocol import MAX_MESSAGE_BYTES
from longshore_runtime.rewards.child_process import child_environment
from longshore_runtime.rewards.fork_server import START_LIMIT_S, Fork, ForkRefused, ForkServer, ImportsFailed
from longshore_runtime.rewards.fork_template import SWEEP_S

log = structlog.get_logger()

_END_S: Final = 5.0
"""Seconds from the end of a process's pipes to the end of the process, unless it has only closed them."""
_END_MS: Final = 5000
"""Milliseconds that a process that was killed may take to end."""
_NUM_REMOVALS: Final = 5
_DIRECTORY: Final = "longshore-agent-"
"""Name of the directory of an agent, before the number of its process."""
_CLOSE_S: Final = 10.0
"""Seconds that a template may take to end."""


def agent_directory(pid: int) -> Path:
    """Return the working directory of an agent whose process has this number."""
    return Path(tempfile.gettempdir()) / f"{_DIRECTORY}{pid}"


def remove_directory(directory: Path) -> None:
    """Remove the directory of an agent, which may have made it read-only, or put something else in its place."""
    with contextlib.suppress(OSError):
        if directory.is_symlink() or not directory.is_dir():
            directory.unlink()
            return
        directory.chmod(0o700)
        for path, names, _ in os.walk(directory):
            for name in names:
                if not (inner := Path(path, name)).is_symlink():
                    inner.chmod(0o700)
    shutil.rmtree(directory, ignore_errors=True)


def remove_left_directories() -> None:
    """Remove the directories of agents that ended with their pod, such as one that was killed."""
    for directory in agent_directory(0).parent.glob(f"{_DIRECTORY}*"):
        if not Path("/proc", directory.name.removeprefix(_DIRECTORY)).exists():
            remove_directory(directory)


def _remove_after(fork: Fork, directory: Path) -> None:
    """Remove the directory of an agent once its process, which was killed, has ended."""
    fork.wait(_END_MS)
    fork.close()
    for _ in range(_NUM_REMOVALS):
        remove_directory(directory)
        if not directory.exists():
            return
        time.sleep(SWEEP_S)  # The template then finds what the agent has left running, which may write.
    log.warning("the directory of an agent stays", directory=str(directory))


class CannotStart(Exception):
    """Raised when an episode cannot begin; the message is one sentence."""

    def __init__(self, sentence: str, *, is_users_mistake: bool = False) -> None:
        """Take the sentence, and whether every other episode of the environment would fail alike."""
        super().__init__(sentence)
        self.is_users_mistake = is_users_mistake


class ProcessEnded(Exception):
    """Raised when the process of an episode answers no more; the message ends a sentence about it."""


class EpisodeProcess:
    """The running process of one episode."""

    def __init__(
        self,
        fork: Fork,
        lines: asyncio.StreamReader,
        transports: tuple[asyncio.WriteTransport, asyncio.ReadTransport],
        on_close: Callable[[], None],
    ) -> None:
        """Take a fork whose pipes are connected."""
        self._fork = fork
        self._lines = lines
        self._requests, self._replies = transports
        self._release: Callable[[], None] | None = on_close

    @classmethod
    async def connect(cls, fork: Fork, on_close: Callable[[], None]) -> "EpisodeProcess":
        """Connect the pipes of a fork to the event loop; `on_close` is called once the process is killed."""
        loop, lines = asyncio.get_running_loop(), asyncio.StreamReader(MAX_MESSAGE_BYTES)
        to_fork, from_fork = os.fdopen(fork.pipes.requests, "wb", 0), os.fdopen(fork.pipes.replies, "rb", 0)
        with contextlib.ExitStack() as undo:
            for close in (from_fork.close, to_fork.close, fork.close, fork.kill):
                undo.callback(close)
            requests, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, to_fork)
            undo.callback(requests.abort)
            replies, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), from_fork)
            undo.pop_all()
        return cls(fork, lines, (requests, replies), on_close)

    def write(self, line: bytes) -> None:
        """Send a line, of which as much is kept as the process does not read yet."""
        self._requests.write(line)

    async def read(self) -> bytes:
        """Return the next line; raises ProcessEnded."""
        try:
            line = await self._lines.readline()
        except ValueError as error:
            raise ProcessEnded(f"wrote an answer of more than {MAX_MESSAGE_BYTES >> 20} MiB") from error
        if not line.endswith(b"\n"):
            raise ProcessEnded(await self._cause())
        return line

    def kill(self) -> None:
        """Kill the process, and with it everything that it has started, and give back its place.

        Whoever reads learns that it has ended. The place is free at once: the coordinator gives it to another episode
        as soon as it has closed this one.
        """
        self._fork.kill()
        if self._release is not None:
            self._release()
            self._release = None

    def close(self) -> None:
        """Kill the process and close its pipes, from which nobody reads."""
        self.kill()
        if not self._requests.is_closing():  # It is if the process has ended, and Python 3.11 fails for that.
            self._requests.abort()
        self._replies.close()
        if not (directory := agent_directory(self._fork.pid)).exists():
            self._fork.close()
            return
        try:
            asyncio.get_running_loop().run_in_executor(None, _remove_after, self._fork, directory)
        except RuntimeError as error:  # Episodes have taken all processes that the pod may have.
            self._fork.close()
            log.warning("the directory of an agent stays", directory=str(directory), reason=str(error))

    async def _cause(self) -> str:
        try:
            async with asyncio.timeout(_END_S):
                await _until_readable(self._fork.pipes.end)
        except TimeoutError:
            return "has closed its pipes"
        return _how_it_ended(os.read(self._fork.pipes.end, 16).decode())


class Template:
    """The template of an environment in a pod: started when it is first needed, and again if it is gone."""

    def __init__(self, environment: Environment) -> None:
        """Start nothing yet."""
        self.environment = environment
        """Environment, with its limits."""
        self._lock = asyncio.Lock()
        """Lock for the template, which forks for one episode at a time."""
        self._server: ForkServer | None = None
        self._mistake: str | None = None
        """Mistake of the user for which no episode can begin, as a sentence."""
        self._places = asyncio.Semaphore(environment.most_episodes)
        """Places of the episodes that run or begin."""
        self._is_closed = False

    async def fork(self, is_wanted: Callable[[], bool] = lambda: True) -> EpisodeProcess:
        """Start the process of an episode once it has a place, if it is still wanted then; raises CannotStart.

        There are always places, except while episodes that were closed have not begun yet, or while those of a
        connection that broke have not ended.
        """
        await self._places.acquire()
        with contextlib.ExitStack() as undo:
            undo.callback(self._places.release)
            try:
                async with self._lock:
                    if not is_wanted():
                        raise CannotStart("nobody wants the episode any more")
                    process = await EpisodeProcess.connect(await self._forked(), self._places.release)
            except CannotStart as error:
                if error.is_users_mistake:
                    self._mistake = str(error)
                raise
            except OSError as error:
                raise self._cannot_start(f"cannot start a process ({error})") from error
            undo.pop_all()
        return process

    async def close(self) -> None:
        """End the template and everything that it has forked."""
        self._is_closed = True
        if self._server is not None:
            self._server.hang_up()
        async with self._lock:
            if self._server is not None:
                await _end(self._server)
                self._server = None

    async def _forked(self) -> Fork:
        if self._mistake is not None:
            raise CannotStart(self._mistake, is_users_mistake=True)
        if self._server is not None:
            try:
                return await _next_fork(self._server)
            except ForkRefused:
                raise
            except OSError:  # Somebody has ended it, for want of memory perhaps.
                self._server.kill()
        if self._is_closed:
            raise self._cannot_start("ends")
        self._server = self._started()
        await self._wait_ready(self._server)
        return await _next_fork(self._server)

    def _started(self) -> ForkServer:
        environment = self.environment
        modules = os.environ.get(contract.ENV_MODULES)
        options = {
            "environment": environment.model_dump(mode="json", by_alias=True),
            "modules": modules,
            "url": environment.url if environment.server is None else own_server.url_of(environment.server),
        }
        return ForkServer(
            "longshore_runtime.environments.template",
            [json.dumps(options)],
            # Without a seed of hashes, sets would have another order in the next attempt at an episode.
            {**child_environment(os.environ), "PYTHONHASHSEED": "0"},
        )

    async def _wait_ready(self, server: ForkServer) -> None:
        """Wait until the module is imported; raises CannotStart."""
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await _until_readable(server.control.fileno())
            server.receive_ready()
        except ImportsFailed as error:
            raise CannotStart(str(error), is_users_mistake=True) from error
        except TimeoutError as error:
            server.kill()
            raise self._import_error(f"its import does not end within {START_LIMIT_S:g} s") from error
        except ConnectionError as error:
            if self._is_closed:
                raise self._cannot_start("ends") from error
            try:
                code = await asyncio.to_thread(server.process.wait, _CLOSE_S)
            except subprocess.TimeoutExpired:
                server.kill()
                raise self._import_error("its import closes files that are not its own") from error
            if code < 0:
                raise self._cannot_start(_how_it_ended(str(code)), "the process that imports it") from error
            raise self._import_error(f"its import ends the process with exit code {code}") from error

    def _import_error(self, what: str) -> CannotStart:
        return CannotStart(f"{self.environment.code_field}: {what}", is_users_mistake=True)

    def _cannot_start(self, what: str, who: str = "its pod") -> CannotStart:
        return CannotStart(f"environment {self.environment.name}: {who} {what}")


async def _next_fork(server: ForkServer) -> Fork:
    """Return a new fork; raises OSError."""
    pipes = server.request()
    try:
        async with asyncio.timeout(START_LIMIT_S):
            await _until_readable(server.control.fileno())
    except TimeoutError:
        server.kill()  # Nothing is received from it then, and another one starts for the next episode.
    return server.receive(pipes)


async def _end(server: ForkServer) -> None:
    """Wait until a template has ended; kill it if it still imports."""
    if not server.is_ready:
        server.kill()
        return
    try:
        await asyncio.to_thread(server.process.wait, _CLOSE_S)
    except subprocess.TimeoutExpired:
        server.kill()
    else:
        server.control.close()


async def _until_readable(file: int) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(file, _set_once, ready)
    try:
        await ready
    finally:
        loop.remove_reader(file)


def _set_once(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _how_it_ended(exit_code: str) -> str:
    if not exit_code:
        return "has ended"
    if (code := int(exit_code)) >= 0:
        return f"has ended with exit code {code}"
    cause = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
    return f"was killed by signal {-code} ({signal.strsignal(-code)}){cause}"
