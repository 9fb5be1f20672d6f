"""Notices for users about engines that are gone."""

from collections.abc import Callable

from longshore.api.reasons import NoticeReason

Notify = Callable[[str, str], None]
"""Function that takes a reason in one word and a sentence; called from any thread."""


def ignore(reason: str, message: str) -> None:
    """Notify nobody."""


class EngineNotices:
    """One notice per loss, however many threads find out. Thread-safe, since each step is one operation of the dict."""

    def __init__(self, notify: Notify = ignore) -> None:
        self._notify = notify
        self._pods: dict[int, int] = {}
        """Worker pods of the engines without a notice so far."""

    def starts(self, engine: int, pod: int) -> None:
        """Note that an engine begins to start; one that was gone may come back under its number."""
        self._pods[engine] = pod

    def stops(self, engine: int) -> None:
        """Note that an engine is about to be stopped on purpose, which is not worth a notice."""
        self._pods.pop(engine, None)

    def lost(self, engine: int, reason: str) -> None:
        """Note that an engine is gone, or is no longer of use."""
        self._notify_once(engine, NoticeReason.ENGINE_LOST, f"was lost: {reason}")

    def not_asleep(self, engine: int, limit_s: float) -> None:
        """Note that an engine is about to be stopped since it did not fall asleep."""
        self._notify_once(
            engine, NoticeReason.ENGINE_DID_NOT_SLEEP, f"did not fall asleep within {limit_s:.0f} s and was stopped"
        )

    def close(self) -> None:
        """Note that all engines are about to be stopped."""
        self._pods.clear()

    def _notify_once(self, engine: int, reason: NoticeReason, what: str) -> None:
        pod = self._pods.pop(engine, None)
        if pod is not None:
            self._notify(reason, f"engine {engine} (worker {pod}) {what}")
