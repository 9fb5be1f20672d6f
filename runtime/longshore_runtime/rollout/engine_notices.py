"""Notices for users about engines that are gone."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from longshore.api.reasons import NoticeReason
from longshore.checks.memory import gib
from longshore_runtime.cluster.deaths import Death
from longshore_runtime.errors import first_line
from longshore_runtime.rollout.engine_replies import PROCESS_GONE

log = structlog.get_logger()

_SEARCH_LIMIT_S: Final = 15.0
"""Time limit for all causes that are still asked for when the engines are stopped."""

FindDeath = Callable[[], tuple[int, Death] | None]
"""Function that asks in which pod a process of an engine ended, and how; takes seconds."""
Notify = Callable[[str, str], None]
"""Function that takes a reason in one word and a sentence; called from any thread."""


def ignore(reason: str, message: str) -> None:
    """Notify nobody."""


class EngineNotices:
    """One notice per loss, however many threads find out.

    fleets, reader threads ── `starts`, `stops`, `lost` ──► `_engines`, under the lock
    `lost`, of a process that has died ──► a thread that asks the pod for the cause ──► `notify`
    `close` ──► waits for these threads
    """

    def __init__(self, notify: Notify = ignore, pod_memory_bytes: int = 0) -> None:
        """Send notices by `notify`; `pod_memory_bytes` is the memory that a worker pod may use."""
        self._notify = notify
        self._pod_memory_bytes = pod_memory_bytes
        self._engines: dict[int, tuple[Sequence[int], FindDeath]] = {}
        """Worker pods of the engines without a notice so far, and how to learn of their deaths."""
        self._searches: list[threading.Thread] = []
        """Threads that ask how an engine ended."""
        self._lock = threading.Lock()
        """Held while an engine is taken out and its search begins, so that `close` waits for every search."""

    def starts(self, engine: int, pods: Sequence[int], find_death: FindDeath = lambda: None) -> None:
        """Note that an engine begins to start; one that was gone may come back under its number."""
        with self._lock:
            self._engines[engine] = (pods, find_death)

    def stops(self, engine: int) -> None:
        """Note that an engine is about to be stopped on purpose, which is not worth a notice."""
        self._take(engine)

    def lost(self, engine: int, reason: str) -> None:
        """Note that an engine is gone, or is no longer of use.

        If its process has died, the notice follows when the pod has told the cause: the round does not wait for it.
        """
        with self._lock:
            pods, find_death = self._engines.pop(engine, (None, None))
            if pods is not None and find_death is not None and reason.startswith(PROCESS_GONE):
                arguments = (engine, pods, reason, find_death)
                search = threading.Thread(target=self._search, args=arguments, name=f"death-of-{engine}", daemon=True)
                self._searches.append(search)
                search.start()
                return
        if pods is not None:
            self._notify(NoticeReason.ENGINE_LOST, f"{_name(engine, pods)} was lost: {reason}")

    def not_asleep(self, engine: int, limit_s: float) -> None:
        """Note that an engine is about to be stopped since it did not fall asleep."""
        pods = self._take(engine)
        if pods is not None:
            what = f"did not fall asleep within {limit_s:.0f} s and was stopped"
            self._notify(NoticeReason.ENGINE_DID_NOT_SLEEP, f"{_name(engine, pods)} {what}")

    def close(self) -> None:
        """Note that all engines are about to be stopped, and wait for the notices that are still due."""
        with self._lock:
            self._engines.clear()
        deadline_s = time.monotonic() + _SEARCH_LIMIT_S
        for search in self._searches:
            search.join(max(0.0, deadline_s - time.monotonic()))

    def _take(self, engine: int) -> Sequence[int] | None:
        with self._lock:
            pods, _ = self._engines.pop(engine, (None, None))
        return pods

    def _search(self, engine: int, pods: Sequence[int], reason: str, find_death: FindDeath) -> None:
        what = f"was lost: {reason}"
        try:
            if (found := find_death()) is not None:
                pod, death = found
                pods, what = (pod,), self._describe(death)
        except Exception as error:  # noqa: BLE001 - whatever keeps the cause from being known, the loss is told
            log.warning("how an engine ended is not known", engine=engine, reason=first_line(error))
        self._notify(NoticeReason.ENGINE_LOST, f"{_name(engine, pods)} {what}")

    def _describe(self, death: Death) -> str:
        if not death.is_lack_of_memory(self._pod_memory_bytes):
            return str(death)
        return f"{death}: probably out of memory. Raise workers.resources.memory ({gib(self._pod_memory_bytes)} GiB)"


def _name(engine: int, pods: Sequence[int]) -> str:
    return f"engine {engine} (worker{'s' if len(pods) > 1 else ''} {', '.join(map(str, pods))})"
