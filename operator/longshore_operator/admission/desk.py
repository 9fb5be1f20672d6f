"""The shell of the admission: it collects what passes see of jobs, and decides about all of them, not too often."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime

from longshore.api.rljob import RLJob
from longshore_operator.admission.config import AdmissionConfig
from longshore_operator.admission.demand import Key, Stage
from longshore_operator.admission.ledger import Ledger, application
from longshore_operator.observed import PodView, Standing

_MIN_PAUSE_S = 0.1
_PAUSE_PER_COST = 20
"""Deciding takes a twentieth of the time at most, however many jobs there are and however often they change."""


class AdmissionDesk:
    """Asked in every pass; `wake(key)` is called for jobs of which a decision has been made.

    It decides nothing until every job that existed at the start has been looked at: who holds GPUs is in the status of
    the jobs.
    """

    def __init__(self, config: AdmissionConfig, wake: Callable[[Key], None]) -> None:
        self._config = config
        self._wake = wake
        self._ledger = Ledger(config.limits) if config.limits is not None else None
        self._unseen: set[Key] | None = None
        """Jobs that existed at the start and were not looked at yet; None: it is not known which existed."""
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._not_before_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether jobs have to be admitted at all."""
        return self._ledger is not None

    async def expect(self, pages: AsyncIterator[Sequence[Key]]) -> None:
        """Note the jobs that exist: each is looked at before anything is decided."""
        unseen: set[Key] = set()
        async for page in pages:
            unseen.update(page)
        self._unseen = unseen
        for key in tuple(unseen):
            self._wake(key)
        self._decide_soon(None)

    def look(self, key: Key, job: RLJob, pods: tuple[PodView, ...], now: datetime) -> Standing | None:
        """A pass looks at a job: whether it is admitted; None: it need not be."""
        if self._ledger is None:
            return None
        if self._ledger.note(key, application(job, pods, self._config, now)):
            self._is_due = True
        self._seen(key)
        return self._ledger.standing(key)

    def recover(self, key: Key, job: RLJob, pods: tuple[PodView, ...], now: datetime) -> None:
        """A pass could not look at a job: what it holds counts all the same, and what it wants waits for the next."""
        if self._ledger is None or self._unseen is None or key not in self._unseen:
            return
        found = application(job, pods, self._config, now)
        if found.request is not None and found.request.stage is not Stage.WAITING and self._ledger.note(key, found):
            self._is_due = True
        self._seen(key)

    def stop(self, key: Key, job: RLJob, pods: tuple[PodView, ...], now: datetime) -> None:
        """Withdraw a job that must not have pods for now; it holds GPUs as long as it has pods."""
        has_pods = any(pod.holds_resources for pod in pods)
        if self._ledger is not None and has_pods and self._ledger.note(key, application(job, pods, self._config, now)):
            self._is_due = True
        self.withdraw(key, has_pods=has_pods)

    def withdraw(self, key: Key, *, has_pods: bool) -> None:
        """Withdraw a job that is deleted, unreadable or in a queue of Kueue; its pods may still hold GPUs."""
        if self._ledger is None:
            return
        if self._ledger.leave(key) if has_pods else self._ledger.forget(key):
            self._is_due = True
        self._seen(key)

    def close(self) -> None:
        """Decide nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _seen(self, key: Key) -> None:
        if self._unseen is not None:
            self._unseen.discard(key)
        self._decide_soon(key)

    def _decide_soon(self, current: Key | None) -> None:
        if not self._is_due or self._unseen is None or self._unseen or self._timer is not None:
            return
        wait_s = self._not_before_s - time.monotonic()
        if wait_s > 0:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._decide, None)
        else:
            self._decide(current)

    def _decide(self, current: Key | None) -> None:
        """`current`: the job whose pass goes on with the decision; it need not be woken."""
        assert self._ledger is not None, "only an open desk decides"
        self._timer, self._is_due = None, False
        began_s = time.monotonic()
        changed = self._ledger.decide()
        ended_s = time.monotonic()
        self._not_before_s = ended_s + max(_MIN_PAUSE_S, _PAUSE_PER_COST * (ended_s - began_s))
        for key in sorted(changed - {current}):
            self._wake(key)
