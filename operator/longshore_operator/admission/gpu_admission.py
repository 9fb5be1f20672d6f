"""The operator's own admission: passes report what they see of jobs, and it decides about all of them at once.

report, stop, withdraw (from passes)  ──►  Ledger  ──►  decide, not too often  ──►  wake the jobs concerned
state (to passes)                     ◄──  Ledger
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime

import structlog

from longshore.api.rljob import RLJob
from longshore_kube.errors import KubeError
from longshore_operator.admission.demand import Limits, Stage
from longshore_operator.admission.ledger import Ledger, application
from longshore_operator.config import AdmissionConfig
from longshore_operator.context import Admission
from longshore_operator.identity import Key
from longshore_operator.pod_view import PodView, hold_resources

_RELIST_PAUSE_S = 5.0
_MIN_PAUSE_S = 0.1
_PAUSE_PER_COST = 20
"""Deciding takes a twentieth of the time at most, however many jobs there are and however often they change."""

log = structlog.get_logger(__name__)


class GpuAdmission:
    """Collects the GPU requests of all jobs; `wake(key)` is called for jobs about which something was decided.

    It decides nothing until a pass has reported every job that existed at the start: who holds GPUs is in the status of
    the jobs.
    """

    def __init__(self, config: AdmissionConfig, wake: Callable[[Key], None]) -> None:
        self._config = config
        self._wake = wake
        self._ledger = Ledger(config.limits or Limits())
        self._unseen: set[Key] | None = None
        """Jobs that existed at the start and were not looked at yet; None: it is not known which existed."""
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._not_before_s = 0.0

    async def open(self, list_jobs: Callable[[], AsyncIterator[Sequence[Key]]]) -> None:
        """Expect the jobs that exist, if jobs have to be admitted; never return."""
        while self._config.limits is not None:
            try:
                await self.expect(list_jobs())
                break
            except KubeError as error:
                log.warning("jobs could not be listed; none is admitted until they are", error=repr(error))
                await asyncio.sleep(_RELIST_PAUSE_S)
        await asyncio.Event().wait()

    async def expect(self, pages: AsyncIterator[Sequence[Key]]) -> None:
        """Note the jobs that exist: each must be reported before anything is decided."""
        unseen: set[Key] = set()
        async for page in pages:
            unseen.update(page)
        self._unseen = unseen
        for key in tuple(unseen):
            self._wake(key)
        self._decide_soon(None)

    def state(self, key: Key) -> Admission | None:
        """Return whether a job that was reported is admitted; None: it need not be."""
        return self._ledger.state(key)

    def report(self, key: Key, job: RLJob, pods: tuple[PodView, ...], now: datetime) -> None:
        """Note what a pass sees of a job."""
        if self._ledger.note(key, application(job, pods, self._config, now)):
            self._is_due = True
        self._seen(key)

    def report_failed(self, key: Key, job: RLJob, pods: tuple[PodView, ...], now: datetime) -> None:
        """Note that a pass has failed: what the job holds counts all the same, and what it wants waits for the next."""
        if self._unseen is None or key not in self._unseen:
            return
        found = application(job, pods, self._config, now)
        if found.request is not None and found.request.stage is not Stage.WAITING and self._ledger.note(key, found):
            self._is_due = True
        self._seen(key)

    def stop(self, key: Key, job: RLJob, pods: tuple[PodView, ...], now: datetime) -> None:
        """Withdraw a job that must not have pods for now; it holds GPUs as long as it has pods."""
        if hold_resources(pods) and self._ledger.note(key, application(job, pods, self._config, now)):
            self._is_due = True
        self.withdraw(key, pods)

    def withdraw(self, key: Key, pods: tuple[PodView, ...]) -> None:
        """Withdraw a job that is deleted, unreadable or in a queue of Kueue; its pods may still hold GPUs."""
        if self._ledger.leave(key) if hold_resources(pods) else self._ledger.forget(key):
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
        """Decide about all jobs; `current`: the job whose pass goes on with the decision; it need not be woken."""
        self._timer, self._is_due = None, False
        began_s = time.monotonic()
        changed = self._ledger.decide()
        ended_s = time.monotonic()
        self._not_before_s = ended_s + max(_MIN_PAUSE_S, _PAUSE_PER_COST * (ended_s - began_s))
        for key in sorted(changed - {current}):
            self._wake(key)
