"""Observe, decide, apply: one task per job, woken by events and by the time that its plan named."""

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import structlog
from pydantic import ValidationError

from longshore.api import names
from longshore.api.rljob import RLJob
from longshore.api.spec import RLJobSpec
from longshore.api.status import FINISHED_PHASES, RLJobStatus
from longshore_operator.execute import ApplyFailed, Executor, status_fields, write_status
from longshore_operator.informer import Key, PodInformer
from longshore_operator.kube import ApiError, Kube
from longshore_operator.metrics import Metrics
from longshore_operator.notices import newest_notice
from longshore_operator.observed import ClaimView, Observed, PodView
from longshore_operator.plan import OperatorConfig, Plan
from longshore_operator.reconcile import reconcile, reject

RESYNC = timedelta(minutes=15)
"""A job is looked at this often even if nothing happens, and its children are applied anew."""
RESYNC_WHILE_STARTING = timedelta(seconds=20)
"""The same while a pod has a node and does not start: someone may have deleted what it mounts."""
_FIRST_RETRY_S = 1.0
_MAX_RETRY_S = 60.0
_SECRET_BYTES = 32

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Job:
    """What the controller remembers of a job between passes; all of it can be lost without harm."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    uid: str = ""
    applied: dict[tuple[str, str], str] = field(default_factory=dict)
    applied_since: datetime | None = None
    apply_error: str | None = None
    told_rejection: int = 0
    told_notice: tuple[int, int] = (0, 0)
    seen_version: str = ""
    pending_since_s: float | None = None
    """Monotonic time since which a pass is due and has not ended."""


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


class Controller:
    """Reconciles every job that it is woken for."""

    def __init__(
        self,
        kube: Kube,
        config: OperatorConfig,
        metrics: Metrics,
        namespace: str | None,
        max_concurrency: int = 16,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._kube = kube
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._slots = asyncio.Semaphore(max_concurrency)
        self._jobs: dict[Key, _Job] = {}
        self.informer = PodInformer(kube, namespace, self.wake)

    def wake(self, key: Key, resource_version: str = "") -> None:
        """Something about this job changed; its own last write is no news."""
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job()
            job.task = asyncio.create_task(self._run(key, job), name=f"reconcile {key[0]}/{key[1]}")
        elif resource_version and resource_version == job.seen_version:
            return
        if job.pending_since_s is None:
            job.pending_since_s = time.monotonic()
        job.wake.set()
        self._metrics.queue_depth.set(self.num_pending())

    def num_pending(self) -> int:
        """Jobs that wait for a pass, or are in one."""
        return sum(job.pending_since_s is not None for job in self._jobs.values())

    def oldest_pending_s(self, now_s: float) -> float:
        """How long the most patient job has waited for a pass to end; `now_s` is monotonic time."""
        waits = (now_s - job.pending_since_s for job in self._jobs.values() if job.pending_since_s is not None)
        return max(waits, default=0.0)

    async def close(self) -> None:
        """Stop all passes."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, key: Key, job: _Job) -> None:
        await self.informer.synced.wait()
        retry_s = _FIRST_RETRY_S
        next_look: float | None = None
        while True:
            await _wait(job.wake, next_look)
            job.wake.clear()
            async with self._slots:
                try:
                    with self._metrics.reconcile_seconds.time():
                        exists, next_look = await self._pass(key, job)
                    retry_s = _FIRST_RETRY_S
                except Exception as error:
                    # Whatever is wrong with one job must not stop the others.
                    self._metrics.reconcile_errors.inc()
                    known = isinstance(error, ApplyFailed | ApiError | aiohttp.ClientError | TimeoutError)
                    log.warning("reconciling failed", job=key, error=repr(error), exc_info=not known)
                    exists, next_look = True, retry_s
                    retry_s = min(2 * retry_s, _MAX_RETRY_S)
            if not job.wake.is_set():
                job.pending_since_s = None
            self._metrics.queue_depth.set(self.num_pending())
            if not exists and not job.wake.is_set():
                del self._jobs[key]
                self._metrics.forget(key)
                return

    async def _pass(self, key: Key, job: _Job) -> tuple[bool, float | None]:
        """One reconciliation; returns whether the job exists and in how many seconds to look again."""
        stored = await self._kube.get(names.KIND, *key)
        if stored is None:
            return False, None
        now = self._clock()
        self._refresh(key, job, stored, now)
        plan, status = await self._decide(key, job, stored, now)
        if plan.status is None:
            return True, None
        self._metrics.set_phase(key, plan.status.phase)
        self._metrics.set_gpus(key, plan.status.gpus)
        if status_fields(plan.status) != status_fields(status):
            written = await write_status(self._kube, key, job.uid, plan.status)
            job.seen_version = written["metadata"]["resourceVersion"]
            self._metrics.count_assignment(status.assignment, plan.status.assignment)
        error_shown = job.apply_error
        await self._apply(key, job, plan, now)
        self._note_told(job, status)
        if error_shown is not None:
            return True, 0.0
        if plan.status.phase in FINISHED_PHASES and plan.requeue_at is None:
            return True, None
        return True, _seconds_until(plan.requeue_at, now, self._resync(key))

    def _note_told(self, job: _Job, status: RLJobStatus) -> None:
        """Events have told of a rejection and of notices; they are not told again."""
        job.told_notice = max(job.told_notice, newest_notice(status.runtime))
        rejected = status.runtime.rejected_epoch if status.runtime is not None else 0
        if rejected == status.assignment.epoch and rejected > job.told_rejection:
            job.told_rejection = rejected
            self._metrics.assignment_rejections.inc()

    def _resync(self, key: Key) -> timedelta:
        pods = self.informer.pods(key)
        starting = any(pod.phase == "Pending" and pod.scheduled and not pod.deleting for pod in pods)
        return RESYNC_WHILE_STARTING if starting else RESYNC

    def _refresh(self, key: Key, job: _Job, stored: dict[str, Any], now: datetime) -> None:
        """Forget what was applied for a namesake, or too long ago."""
        uid = stored["metadata"]["uid"]
        expired = job.applied_since is not None and now - job.applied_since >= self._resync(key)
        if uid != job.uid or expired:
            if uid != job.uid:
                job.told_rejection, job.told_notice = 0, (0, 0)
            job.uid, job.applied, job.applied_since = uid, {}, now
        job.seen_version = stored["metadata"]["resourceVersion"]

    async def _decide(self, key: Key, job: _Job, stored: dict[str, Any], now: datetime) -> tuple[Plan, RLJobStatus]:
        """The plan for a stored job, and the status that it had."""
        pods = self.informer.pods(key)
        status = RLJobStatus.model_validate(stored.get("status") or {})
        try:
            spec = RLJobSpec.model_validate(stored["spec"])
        except ValidationError as error:
            return reject(status, stored["metadata"].get("generation", 0), error, pods, now), status
        parsed = RLJob(metadata=stored["metadata"], spec=spec, status=status)
        observed = Observed(
            pods=pods,
            children=dict(job.applied),
            ray_token=secrets.token_hex(_SECRET_BYTES),
            judge_token=secrets.token_hex(_SECRET_BYTES),
            claim=await self._claim(key, parsed, pods),
            apply_error=job.apply_error,
            told_rejection=job.told_rejection,
            told_notice=job.told_notice,
        )
        return reconcile(parsed, observed, now, self._config), status

    async def _claim(self, key: Key, job: RLJob, pods: tuple[PodView, ...]) -> ClaimView | None:
        """The volume claim, looked at only while pods wait to be scheduled or started."""
        waits = any(pod.phase == "Pending" and not pod.deleting for pod in pods)
        if not waits or job.status.phase in FINISHED_PHASES:
            return None
        name = job.spec.storage.claim_name or names.storage_claim(key[1])
        claim = await self._kube.get("PersistentVolumeClaim", key[0], name)
        if claim is None:
            return ClaimView(name, exists=False)
        return ClaimView(name, exists=True, phase=claim.get("status", {}).get("phase", ""))

    async def _apply(self, key: Key, job: _Job, plan: Plan, now: datetime) -> None:
        executor = Executor(
            self._kube,
            on_applied=job.applied.__setitem__,
            on_created=lambda pod: self.informer.mark_created(key, pod),
            on_deleting=lambda name, uid: self.informer.mark_deleting(key, name, uid),
        )
        try:
            await executor.run(key, job.uid, plan.actions, now)
        except ApplyFailed as error:
            job.apply_error = str(error)
            raise
        job.apply_error = None


def _seconds_until(moment: datetime | None, now: datetime, resync: timedelta) -> float:
    """Until the plan's time, at most until the next routine look (spread, so that jobs do not move in step)."""
    routine_s = resync.total_seconds() * random.uniform(1.0, 1.2)
    return min(routine_s, max(0.0, (moment - now).total_seconds())) if moment is not None else routine_s


async def _wait(wake: asyncio.Event, timeout_s: float | None) -> None:
    try:
        await asyncio.wait_for(wake.wait(), timeout_s)
    except TimeoutError:
        return
