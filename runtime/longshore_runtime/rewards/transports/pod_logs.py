"""Copy the logs of pods that cannot write to the storage into it: `logs/COMPONENT-INDEX-ATTEMPT.log`.

A thread asks every pod every few seconds. What a pod sends is read as from an attacker: of bounded size, and text.
"""

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Final

import aiohttp
import structlog

from longshore.api.addresses import redacted
from longshore_runtime.rewards.captured_log import MAX_LOG_BYTES
from longshore_runtime.rewards.transports import pod_protocol
from longshore_runtime.rewards.transports.pod import ServingPods, new_session
from longshore_runtime.settings import host_port

log = structlog.get_logger()

_PERIOD_S: Final = 5.0
_ASK_LIMIT_S: Final = 2.0
_MAX_ANSWER_BYTES: Final = MAX_LOG_BYTES + 1024
_MAX_FILE_BYTES: Final = 4 << 20
"""Size at which a file becomes the older one, `.old.log`, in place of the one before it."""


class PodLogs:
    """Copies the logs of pods until it is closed."""

    def __init__(self, pods: ServingPods, directory: Path, attempt: int) -> None:
        """Start to copy."""
        self._pods = pods
        self._directory = directory
        self._attempt = attempt
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{pods.component}-logs", daemon=True)
        self._thread.start()

    def close(self, limit_s: float) -> None:
        """Copy what has been written since the last time, and end; give up after the limit."""
        self._is_closed.set()
        self._thread.join(limit_s)

    def _run(self) -> None:
        is_last = False
        try:
            while not is_last:
                is_last = self._is_closed.wait(_PERIOD_S)
                asyncio.run(self._copy_all())
        except OSError as error:  # A full volume, say: scoring does not depend on it.
            log.warning(
                f"the logs of {self._pods.component} pods are no longer copied to the storage", reason=str(error)
            )

    async def _copy_all(self) -> None:
        async with new_session() as session:
            await asyncio.gather(*(self._copy(session, index) for index in range(self._pods.count)))

    async def _copy(self, session: aiohttp.ClientSession, index: int) -> None:
        if (address := self._pods.address_of(index)) is None:
            return
        data = bytearray()
        # `PodConnections` reports pods that do not answer. What has come within the limit is kept.
        with contextlib.suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
            async with asyncio.timeout(_ASK_LIMIT_S):
                await self._read_new_lines(session, index, address, data)
        if data:
            path = self._directory / f"{self._pods.component}-{index}-{self._attempt}.log"
            self._append(path, bytes(data[:_MAX_ANSWER_BYTES]))

    async def _read_new_lines(self, session: aiohttp.ClientSession, index: int, address: str, data: bytearray) -> None:
        url = f"http://{host_port(address, self._pods.port)}{pod_protocol.LOG_PATH}"
        async with session.get(url, headers=self._pods.authorization(index), auto_decompress=False) as answer:
            answer.raise_for_status()
            async for chunk in answer.content.iter_any():
                data += chunk
                if len(data) > _MAX_ANSWER_BYTES:
                    return

    def _append(self, path: Path, data: bytes) -> None:
        text = redacted(_printable(data.decode("utf-8", "replace")))
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size + len(data) > _MAX_FILE_BYTES:
            path.replace(path.with_suffix(".old.log"))
        with path.open("a", encoding="utf-8") as file:
            file.write(text)


def _printable(text: str) -> str:
    """Replace control characters, because terminals show the text."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)
