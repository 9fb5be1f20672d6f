"""The process that starts this pod's Ray node: `node_start`, as a new process or as a fork of this one."""

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from longshore_runtime.cluster.fork_server import has_one_thread
from longshore_runtime.cluster.ray_environment import RAY_ENVIRONMENT
from longshore_runtime.cluster.worker_imports import WorkerImports

PRELOADED: Final = "longshore_runtime.preload"
_CHUNK_BYTES: Final = 65536


class NodeStarter:
    """The process, which waits for `start`. It ends with the `with` block unless it was started.

    It is a fork of this one where this one has what is needed: the imports of the node's workers (`preload`), so that
    the server that forks the workers has them too, or Ray for a head, which has no workers. Create it before this
    process has threads.
    """

    def __init__(self, imports: WorkerImports, *, is_head: bool = False) -> None:
        self.imports = imports
        theirs, self._lifeline = os.pipe()
        self._output, their_output = os.pipe()
        preload = sys.modules.get(PRELOADED)
        has_imports = "ray" in sys.modules if is_head else preload is not None and preload.suits(imports)
        if has_imports and has_one_thread():
            self.pid = os.fork()
            if self.pid == 0:
                os.close(self._lifeline)
                os.close(self._output)
                become_starter(theirs, their_output)
        else:
            command = [sys.executable, "-m", "longshore_runtime.cluster.node_start"]
            files = [(os.POSIX_SPAWN_DUP2, *pair) for pair in ((theirs, 0), (their_output, 1), (their_output, 2))]
            self.pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=files, setsid=True)
        os.close(theirs)
        os.close(their_output)
        self.is_used = self._has_ended = False

    def start(self, options: Mapping[str, Any], limit_s: float) -> tuple[int | None, str]:
        """Start the node; returns the exit status (None if it took too long) and the output. Call it once.

        The server that forks workers ends when `lifeline` is closed, by this object or by anyone who has taken it.
        """
        assert not self.is_used, "a process starts one node"
        self.is_used = True
        # This process may have set variables since, as those of the GPUs that the pod's actors share.
        environment = {**os.environ, **RAY_ENVIRONMENT, **self.imports.environment}
        order = {"node": dict(options), "environment": environment, "imports": list(self.imports.modules)}
        with contextlib.suppress(BrokenPipeError):  # Its output says why it has ended.
            os.write(self._lifeline, json.dumps(order).encode() + b"\n")
        output = self._read_output(time.monotonic() + limit_s)
        return (None, "") if output is None else (self._wait(), output)

    def take_lifeline(self) -> int:
        """Return the end of the pipe on which the node depends, for the caller to close."""
        lifeline, self._lifeline = self._lifeline, -1
        return lifeline

    def __enter__(self) -> "NodeStarter":
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._lifeline, self._output):
            if end >= 0:
                os.close(end)
        self._lifeline = self._output = -1
        if not self._has_ended:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()

    def _read_output(self, deadline_s: float) -> str | None:
        output = b""
        while True:
            ready, _, _ = select.select([self._output], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                return None
            data = os.read(self._output, _CHUNK_BYTES)
            if not data:
                return output.decode(errors="replace")
            output += data

    def _wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self._has_ended = True
        return os.waitstatus_to_exitcode(status)


def become_starter(lifeline: int, output: int) -> NoReturn:
    """Run as the starting process, in a fork with the imports of the node's workers; the arguments are its files."""
    from longshore_runtime.cluster.node_start import main

    status = 1
    try:
        os.setsid()
        for source, target in ((lifeline, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        main()
        status = 0
    except SystemExit as error:
        status = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - this process is a copy of the pod's, and must not go on as one
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
