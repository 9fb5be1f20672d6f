"""Notices for users about engines that are gone."""

import threading
from collections.abc import Callable

from longshore.api.reasons import NoticeReason
from longshore.checks.memory import gib
from longshore_runtime.cluster.deaths import Death
from longshore_runtime.rollout.engine_handle import PROCESS_GONE

FindDeath = Callable[[], Death | None]
"""Function that asks the pod of an engine how its process ended; takes seconds."""
Notify = Callable[[str, str], None]
"""Function that takes a reason in one word and a sentence; called from any thread."""


def ignore(reason: str, message: str) -> None:
    """Notify nobody."""


class EngineNotices:
    """One notice per loss, however many threads find out. Thread-safe, since each step is one operation of the dict."""

    def __init__(self, notify: Notify = ignore, pod_memory_bytes: int = 0) -> None:
        """Send notices by `notify`; `pod_memory_bytes` is the memory that a worker pod may use."""
        self._notify = notify
        self._pod_memory_bytes = pod_memory_bytes
        self._engines: dict[int, tuple[int, FindDeath]] = {}
        """Worker pods of the engines without a notice so far, and how to learn of their deaths."""
        self._searches: dict[int, threading.Thread] = {}
        """Threads that ask how an engine ended, by engine."""

    def starts(self, engine: int, pod: int, find_death: FindDeath = lambda: None) -> None:
        """Note that an engine begins to start; one that was gone may come back under its number."""
        self._engines[engine] = (pod, find_death)

    def stops(self, engine: int) -> None:
        """Note that an engine is about to be stopped on purpose, which is not worth a notice."""
        self._engines.pop(engine, None)

    def lost(self, engine: int, reason: str) -> None:
        """Note that an engine is gone, or is no longer of use.

        If its process has died, the notice follows when the pod has told the cause: the round does not wait for it.
        """
        pod, find_death = self._engines.pop(engine, (None, None))
        if pod is None or find_death is None:
            return
        if not reason.startswith(PROCESS_GONE):
            self._notify(NoticeReason.ENGINE_LOST, f"{_name(engine, pod)} was lost: {reason}")
            return

        def search() -> None:
            death = find_death()
            what = f"was lost: {reason}" if death is None else self._describe(death)
            self._notify(NoticeReason.ENGINE_LOST, f"{_name(engine, pod)} {what}")

        self._searches[engine] = threading.Thread(target=search, name=f"death-of-{engine}", daemon=True)
        self._searches[engine].start()

    def not_asleep(self, engine: int, limit_s: float) -> None:
        """Note that an engine is about to be stopped since it did not fall asleep."""
        pod, _ = self._engines.pop(engine, (None, None))
        if pod is not None:
            what = f"did not fall asleep within {limit_s:.0f} s and was stopped"
            self._notify(NoticeReason.ENGINE_DID_NOT_SLEEP, f"{_name(engine, pod)} {what}")

    def close(self) -> None:
        """Note that all engines are about to be stopped, and wait for the notices that are still due."""
        self._engines.clear()
        for search in list(self._searches.values()):
            search.join()

    def _describe(self, death: Death) -> str:
        if not death.is_lack_of_memory(self._pod_memory_bytes):
            return str(death)
        return f"{death}: probably out of memory. Raise workers.resources.memory ({gib(self._pod_memory_bytes)} GiB)"


def _name(engine: int, pod: int) -> str:
    return f"engine {engine} (worker {pod})"
