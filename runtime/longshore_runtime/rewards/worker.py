"""A worker that scores: a thread with its own instance of every reward function, one call at a time.

The functions that run somebody else's code do it in processes of their own, so a thread is all that a worker needs.
"""

import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import structlog

from longshore_runtime.rewards.scorers import LazyScorer, ScorerFactory
from longshore_runtime.rewards.scoring import ScoreItem, ScoreOutcome, Waiting
from longshore_runtime.rewards.surroundings import GPU_SHARING_VARIABLE, Surroundings

log = structlog.get_logger()

T = TypeVar("T")


class ScorerSet:
    """Every reward function of a job, as one worker holds them."""

    def __init__(self, factory: ScorerFactory) -> None:
        self._factory = factory
        self._scorers: Mapping[str, LazyScorer] = {}

    def prepare(self) -> Surroundings:
        """Make all of them ready to score; raises RewardSetupError or RewardFault."""
        self._scorers = self._factory.create()
        for scorer in self._scorers.values():
            scorer.prepare()
        reports = [scorer.report for scorer in self._scorers.values()]
        sandbox = next((report for report in reports if report is not None), None)
        return Surroundings(sandbox, os.environ.get(GPU_SHARING_VARIABLE) or None)

    def score(self, function: str, items: Sequence[ScoreItem]) -> list[ScoreOutcome]:
        """Return the outcomes of these responses, in order; raises RewardSetupError."""
        return self._scorers[function].score_many(items)

    def give_up(self) -> None:
        """See `Waiting`."""
        for scorer in self._scorers.values():
            if isinstance(scorer, Waiting):
                scorer.give_up()

    def close(self) -> None:
        """End what they started."""
        for scorer in self._scorers.values():
            scorer.close()


class ScoringThread:
    """Works through its calls in order. A call that hangs keeps the thread: it cannot be ended from outside."""

    def __init__(self, factory: ScorerFactory) -> None:
        self.ended: Future[None] = Future()
        """Future that is done once everything that the thread started has ended; it cannot be cancelled."""
        self.ended.set_running_or_notify_cancel()
        self._scorers = ScorerSet(factory)
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._is_closed = threading.Event()
        # A daemon: a call that hangs must not keep the process.
        threading.Thread(target=self._run, name="reward-worker", daemon=True).start()

    def prepare(self, wait_s: float = 0.0) -> "Future[Surroundings]":
        """Make every function ready, `wait_s` from now."""

        def work() -> Surroundings:
            self._is_closed.wait(wait_s)
            return self._scorers.prepare()

        return self._call(work)

    def score(self, function: str, items: Sequence[ScoreItem]) -> "Future[list[ScoreOutcome]]":
        """Score responses; see `ScorerSet.score`."""
        return self._call(lambda: self._scorers.score(function, items))

    def close(self) -> None:
        """End after the call that is under way; does not wait. Calls that have not begun are cancelled.

        A call that waits for something that is away waits no longer.
        """
        self._is_closed.set()
        self._scorers.give_up()
        self._calls.put(None)

    def _call(self, work: Callable[[], T]) -> "Future[T]":
        future: Future[T] = Future()
        self._calls.put((future, work))
        return future

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, work = call
            if self._is_closed.is_set() or not future.set_running_or_notify_cancel():
                future.cancel()
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it goes to the caller, who waits
                future.set_exception(error)
        try:
            self._scorers.close()
        except Exception:
            log.exception("a reward function does not end properly")
        self.ended.set_result(None)
