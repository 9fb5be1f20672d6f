"""Score in this process: a thread with its own instance of every reward function, one call at a time.

The functions that run somebody else's code do it in processes of their own, so a thread is all that a worker needs.
Reward pods have such threads too: see `pod_server`.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

import structlog

from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import ResponseScorer, ScoreItem, ScoreOutcome, WorkerDied
from longshore_runtime.rewards.surroundings import Surroundings
from longshore_runtime.rewards.transports.transport import fail

log = structlog.get_logger()

T = TypeVar("T")


class ScoringThread:
    """Implements `Transport`; the worker is lost only when it is given up.

    A call that hangs keeps the thread, because it cannot be ended from outside.
    """

    def __init__(self, factory: ScorerFactory, wait_s: float = 0.0) -> None:
        """Start the thread, which waits before it makes the functions ready."""
        self.node: Future[str] = Future()
        self.node.set_result("here")
        self.death: Future[str] = Future()
        self.ended: Future[None] = Future()
        """Future that is done once everything that the thread started has ended; it cannot be cancelled."""
        self.ended.set_running_or_notify_cancel()
        self._scorers: dict[str, ResponseScorer] = {}
        """Functions that are ready, by name."""
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._unanswered: set[Future[Any]] = set()
        self._is_killed = threading.Event()

        def prepare() -> Surroundings:
            self._is_killed.wait(wait_s)
            return factory.create_all(self._scorers)

        self.ready = self._call(prepare)
        # A daemon: a call that hangs must not keep the process.
        threading.Thread(target=self._run, name="reward-worker", daemon=True).start()

    def score(self, function: str, items: Sequence[ScoreItem]) -> "Future[list[ScoreOutcome]]":
        return self._call(lambda: self._scorers[function].score_many(items))

    def kill(self) -> None:
        """Fail all calls, and end after the one that is under way; does not wait.

        A call that waits for something that is away waits no longer.
        """
        self._is_killed.set()
        for scorer in list(self._scorers.values()):
            scorer.give_up()
        for future in list(self._unanswered):
            fail(future, WorkerDied("it was given up"))
        self._calls.put(None)

    def _call(self, work: Callable[[], T]) -> "Future[T]":
        future: Future[T] = Future()
        self._unanswered.add(future)
        future.add_done_callback(self._unanswered.discard)
        if self._is_killed.is_set():
            fail(future, WorkerDied("it was given up"))
        self._calls.put((future, work))
        return future

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, work = call
            if future.done():  # It was given up.
                continue
            with contextlib.suppress(InvalidStateError):  # It was given up meanwhile.
                try:
                    result = work()
                except BaseException as error:  # noqa: BLE001 - it goes to the caller, who waits
                    future.set_exception(error)
                else:
                    future.set_result(result)
        try:
            for scorer in self._scorers.values():
                scorer.close()
        except Exception:
            log.exception("a reward function does not end properly")
        self.ended.set_result(None)
