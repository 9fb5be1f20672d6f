"""Containers that start as forks of an interpreter with imports done, as an image with a snapshot would.

Programs that import much (torch, for example) take seconds of CPU time to start, each of them. With `preload`, one
process of the cluster imports what they need, while the cluster itself starts, and a container that runs
`python -m MODULE` with the cluster's own interpreter is a fork of it.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Protocol

_READ_AT_IMPORT = (
    "PYTHON", "LD_", "OMP_", "MKL_", "TORCH", "CUDA_", "NCCL_", "GLOO_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "VLLM_",
)  # fmt: skip
"""How variables begin that the interpreter and libraries read once: a container that sets one is a new process."""


class Keeper(Protocol):
    """The process that keeps one container: commands go in, events come out until it ends (see `shim`)."""

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        """Takes commands."""

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        """Gives events."""

    async def wait(self) -> int:
        """Wait for its end, after the last event."""


class _ForkedKeeper:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.stdout = reader
        self.stdin = writer

    async def wait(self) -> int:
        """Return 0 at once, because the last event came when the process ended."""
        return 0


class WarmInterpreter:
    """The server of forks, as the kubelet sees it."""

    def __init__(self, modules: Sequence[str]) -> None:
        """Start importing `modules`; containers that come meanwhile wait for it."""
        self._home = tempfile.TemporaryDirectory(prefix="preload-")
        # Nothing of the user's environment, nor settings below the home directory, get into containers.
        home = self._home.name
        env = {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", "HOME": home, "TMPDIR": home}
        self._control, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.warm_server", *modules],
                stdin=theirs.fileno(),
                start_new_session=True,
                env=env,
            )

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._server.pid

    def fits(self, argv: Sequence[str], env: Mapping[str, str]) -> bool:
        """Return whether a fork does what a new process would.

        This interpreter runs a module, with no settings of its own.
        """
        if len(argv) < 3 or argv[1] != "-m":
            return False
        settings = [name for name in env if name.startswith(_READ_AT_IMPORT) and name != "PYTHONPATH"]
        return not settings and shutil.which(argv[0], path=env.get("PATH", "")) == _interpreter(argv[0])

    async def keeper(self) -> Keeper | None:
        """Return a new keeper; None if the server has ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"k"], [theirs.fileno()])
            except OSError:
                ours.close()
                return None
        return _ForkedKeeper(*await asyncio.open_connection(sock=ours))

    def close(self) -> None:
        """End the server; containers live on."""
        self._control.close()
        self._server.kill()  # It may still be importing.
        self._server.wait()
        self._home.cleanup()


def _interpreter(name: str) -> str:
    return os.path.join(os.path.dirname(sys.executable), os.path.basename(name))  # noqa: PTH118, PTH119, PTH120
