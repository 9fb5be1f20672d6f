"""What the elastic parts of the runtime run against, without threads."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

from longshore.api.names import Component
from longshore.api.round_status import RepurposingBenefit, RolloutLoad
from longshore.api.status import Assignment
from longshore.policy.progress import RoundProgress


@dataclass
class Report:
    """Remembers what was reported."""

    reports: list[tuple[Any, ...]] = field(default_factory=list)

    def milestone(self, progress: RoundProgress, load: RolloutLoad, benefit: RepurposingBenefit | None) -> None:
        self.reports.append(("milestone", round(progress.fraction_finished, 2), load, benefit))

    def engines(self, tp_size: int) -> None:
        self.reports.append(("engines", tp_size))

    def applied(self, epoch: int, trainer_pods: tuple[int, ...]) -> None:
        self.reports.append(("applied", epoch, trainer_pods))

    def rejected(self, epoch: int, reason: str, refused_tp_size: int = 0) -> None:
        self.reports.append(("rejected", epoch, reason, *filter(None, [refused_tp_size])))


@dataclass
class Known:
    """Implements `Assignments`."""

    assignment: Assignment = field(default_factory=Assignment)

    def newest(self) -> Assignment:
        return self.assignment

    def address_of(self, component: Component, index: int) -> str | None:
        """No such pod is here."""
        return None

    def close(self) -> None:
        """Nothing to close."""


class AtOnce(Executor):
    """Does work when it is submitted, or when the test says so."""

    def __init__(self) -> None:
        self._waits = False
        self._work: list[Callable[[], None]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self._work.append(lambda: future.set_result(fn(*args, **kwargs)))
        if not self._waits:
            self.work()
        return future

    def work(self) -> None:
        """Do what was submitted."""
        work, self._work = self._work, []
        for one in work:
            one()
