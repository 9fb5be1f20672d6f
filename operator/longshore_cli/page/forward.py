"""A port of a pod on this machine, by `kubectl port-forward`, which is started again when it has ended."""

import asyncio
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from longshore_cli.errors import CliError
from longshore_client.target import Target, kubeconfig_path

_LISTENS: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")
_START_TIMEOUT_S: Final = 30.0


class Forward:
    """Asked for its port, it is running or says why not; a pod that comes again is reached again."""

    def __init__(self, command: Sequence[str], kubeconfig: str | None) -> None:
        """Take the `kubeconfig` files, as in the variable of that name; None: kubectl's default."""
        self._command = command
        self._environment = os.environ | ({"KUBECONFIG": kubeconfig} if kubeconfig else {})
        self._process: asyncio.subprocess.Process | None = None
        self._port = 0
        self._starting = asyncio.Lock()

    async def port(self) -> int:
        """Return the local port.

        Raises:
            CliError: kubectl cannot forward; in its own words.
        """
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                await self._start()
            return self._port

    async def close(self) -> None:
        """End it; the next call of `port` starts it again."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()

    async def _start(self) -> None:
        # Of its messages those of later connections are of no use, and a pipe that nobody reads would stop it.
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command, env=self._environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None and process.stderr is not None
        try:
            line = (await asyncio.wait_for(process.stdout.readline(), _START_TIMEOUT_S)).decode()
        except TimeoutError:
            await self.close()
            raise CliError("kubectl port-forward does not answer.") from None
        found = _LISTENS.match(line)
        if found is None:
            why = (await process.stderr.read()).decode(errors="replace")
            await process.wait()
            raise CliError(f"kubectl cannot forward the page: {' '.join(why.split()) or 'no reason given'}")
        self._port = int(found[1])
        self._drains = [asyncio.create_task(_drain(stream)) for stream in (process.stdout, process.stderr)]


def forward_command(target: Target, namespace: str, pod: str, port: int) -> list[str]:
    """Return what to run.

    Raises:
        CliError: there is no kubectl.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise CliError("The page comes through `kubectl port-forward`, and there is no kubectl on the PATH.",
                       "Install kubectl, or write the page into a file with `longshore report`.")  # fmt: skip
    context = ["--context", target.context] if target.context else []
    return [kubectl, *context, "-n", namespace, "port-forward", "--address", "127.0.0.1", f"pod/{pod}", f":{port}"]


def forward(target: Target, namespace: str, pod: str, port: int) -> Forward:
    """Return a port-forward of kubectl to a port of a pod, which starts on first use."""
    return Forward(forward_command(target, namespace, pod, port), kubeconfig_path(target))


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 12):
        pass
