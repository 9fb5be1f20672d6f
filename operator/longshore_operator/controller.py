"""One pass over one job: observe, decide, apply.

    kopf (rljob_watch), PodInformer, ChildWatch, KueueClient, GpuAdmission, timers  ──►  Schedule  ──►  Controller._pass
    Controller._pass:  Observer reads  ──►  reconcile decides (pure)  ──►  the status is written, Executor applies

All of it runs in the one event loop of the process. Between the last read and the decision nothing is awaited.
"""

import random
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import structlog
from pydantic import ValidationError

from longshore.api.rljob import RLJob
from longshore.api.status import FINISHED_PHASES, RLJobStatus
from longshore_kube.errors import ApiError
from longshore_operator.admission.gpu_admission import GpuAdmission
from longshore_operator.apply import (
    ApplyFailed,
    Executor,
    replace_status,
    require_repairs,
    status_fields,
    write_status,
)
from longshore_operator.child_watch import ChildWatch
from longshore_operator.config import OperatorConfig
from longshore_operator.context import Admission, Observed, Reads
from longshore_operator.identity import Key
from longshore_operator.job_memory import JobMemory
from longshore_operator.kube import KubeClient
from longshore_operator.kueue.kueue_client import KueueClient
from longshore_operator.metrics import OperatorMetrics
from longshore_operator.notices import newest_notice
from longshore_operator.observe import Observer
from longshore_operator.plan import Action, Event, LabelPod, Plan
from longshore_operator.pod_informer import LOOK_EVERY_S, PodInformer
from longshore_operator.pod_view import hold_resources
from longshore_operator.reconcile import reconcile, reject
from longshore_operator.rljob_watch import JobNews, find_deletions, list_jobs, until_first_ends
from longshore_operator.schedule import PassResult, Schedule
from longshore_operator.stored_job import StoredJob, read_job

_SECRET_BYTES = 32

log = structlog.get_logger(__name__)


def utc_now() -> datetime:
    """Return the time of the wall clock."""
    return datetime.now(UTC)


class Controller:
    """Reconciles every job that it is woken for."""

    def __init__(
        self,
        kube: KubeClient,
        config: OperatorConfig,
        metrics: OperatorMetrics,
        namespace: str | None,
        max_concurrency: int = 16,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._kube = kube
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._namespace = namespace
        self._memories: dict[Key, JobMemory] = {}
        self.schedule = Schedule(self._pass, self._forget, metrics, max_concurrency, namespace is not None)
        self._admission = GpuAdmission(config.admission, self.schedule.wake)
        self.informer = PodInformer(
            kube,
            namespace,
            self.schedule.wake,
            on_progress=self.schedule.settle,
            on_listed=self.schedule.catch_up,
            on_synced=self.schedule.open,
        )
        self._kueue = KueueClient(kube, config, namespace, self.schedule.wake)
        self._observer = Observer(kube, config, self.informer, self._kueue)
        self._children = ChildWatch(
            kube, namespace, self._memories, self.schedule.wake, network_policies=config.network_policies
        )

    async def run(self) -> None:
        """Follow everything that jobs own or wait for, and reconcile the jobs concerned; never return."""
        parts: list[Coroutine[Any, Any, object]] = [
            self.informer.run(),
            self._admission.open(partial(list_jobs, self._kube, self._namespace)),
            find_deletions(self._kube, self._namespace, self._memories.keys(), self.schedule.wake),
            self._kueue.run(),
            self._children.run(),
        ]
        await until_first_ends(parts)

    def on_news(self, key: Key, news: JobNews) -> None:
        """Schedule a job that changed, unless the change is the operator's own write or the job has ended."""
        memory = self._memories.get(key)
        if memory is not None:
            memory.news_version = int(news.resource_version)
        if memory is not None and memory.uid == news.uid and not news.is_deleted:
            is_own = news.resource_version == memory.seen_version
            if is_own or (news.generation and news.generation == memory.finished_generation):
                return
        if news.is_listed:
            self.schedule.catch_up(key)
        else:
            self.schedule.wake(key)

    async def close(self) -> None:
        """Stop all passes."""
        self._admission.close()
        await self.schedule.close()

    def _forget(self, key: Key) -> None:
        self._memories.pop(key, None)
        self._admission.withdraw(key, self.informer.pods(key))
        self._metrics.forget(key)

    async def _pass(self, key: Key) -> PassResult:
        """Reconcile one job."""
        await self.informer.read_hidden(key)
        now = self._clock()
        memory, busy_s = self._memories.setdefault(key, JobMemory()), 0.0
        memory.note_pods(self.informer.pods(key), now)
        stored = memory.take_kept(now)
        if stored is None:
            found = await self._observer.read_job(key)
            if found is None:
                self._forget(key)
                is_left = self.informer.has_hidden(key)
                return PassResult(exists=is_left, next_look_s=LOOK_EVERY_S if is_left else None)
            began_s = time.perf_counter()
            stored = read_job(found, now)
            # A whole job can have a megabyte, so no reference to it is kept while the API server is queried.
            del found
            busy_s = time.perf_counter() - began_s
        memory = memory.refreshed(stored.metadata["uid"], stored.version, self.informer.pods(key), now)
        self._memories[key] = memory
        reads = await self._observe(key, memory, stored, now)
        began_s = time.perf_counter()
        plan = self._decide(key, memory, stored, reads, now)
        busy_s += time.perf_counter() - began_s
        next_look_s = await self._apply(key, memory, stored, plan, now)
        status = plan.status or stored.status
        is_finished = next_look_s is None and status.phase in FINISHED_PHASES
        memory.finished_generation = stored.metadata.get("generation", 0) if is_finished else 0
        if self.informer.has_hidden(key):
            next_look_s = min(LOOK_EVERY_S, next_look_s if next_look_s is not None else LOOK_EVERY_S)
        return PassResult(exists=True, next_look_s=next_look_s, busy_s=busy_s)

    async def _observe(self, key: Key, memory: JobMemory, stored: StoredJob, now: datetime) -> Reads:
        """Return what a decision reads besides the job and its pods."""
        try:
            reads = await self._observer.read(key, memory, stored, now)
        except Exception:
            # The pass fails, and may fail again: admission must not wait for this job.
            if not isinstance(stored.spec, ValidationError):
                job = RLJob(metadata=stored.metadata, spec=stored.spec, status=stored.status)
                self._admission.report_failed(key, job, self.informer.pods(key), now)
            raise
        memory.note_reads(reads, stored.status.attempt)
        return reads

    def _decide(self, key: Key, memory: JobMemory, stored: StoredJob, reads: Reads, now: datetime) -> Plan:
        """Report what was observed of a job to the admission, and return the plan for the job."""
        pods, status = self.informer.pods(key), stored.status
        generation = stored.metadata.get("generation", 0)
        if isinstance(stored.spec, ValidationError):
            self._admission.withdraw(key, pods)
            return reject(status, generation, stored.spec, pods, now, reads.kueue)
        job = RLJob(metadata=stored.metadata, spec=stored.spec, status=status)
        observed = Observed(
            pods=pods,
            children=memory.applied,
            lost_secrets=tuple(name for (_, name), exists in reads.secrets.items() if not exists),
            ray_token=secrets.token_hex(_SECRET_BYTES),
            judge_token=secrets.token_hex(_SECRET_BYTES),
            reward_token=secrets.token_hex(_SECRET_BYTES),
            environments_token=secrets.token_hex(_SECRET_BYTES),
            claim=reads.claim,
            apply_error=memory.apply_error,
            reported_rejection=memory.reported_rejection,
            reported_notice=memory.reported_notice,
            applied_for=memory.applied_for,
            spec_hash=memory.spec_hash(generation, stored.spec),
            kueue=reads.kueue,
            pod_group=reads.pod_group,
            unreadable_status=stored.unreadable,
        )
        observed = replace(observed, admission=self._admit(key, job, observed, now))
        try:
            plan = reconcile(job, observed, now, self._config)
        except Exception:
            if not hold_resources(pods):
                self._admission.withdraw(key, pods)  # It would raise again, and others wait for its GPUs.
            raise
        if plan.status is not None and plan.status.phase in FINISHED_PHASES:
            # There may be no further pass, as nothing may change any more.
            self._admission.withdraw(key, pods)
        return plan

    def _admit(self, key: Key, job: RLJob, observed: Observed, now: datetime) -> Admission | None:
        """Report the job to the operator's admission; return what that says of it, None if it has no say."""
        if observed.kueue is not None:
            # Pods of a job that Kueue has not admitted are left of an admission by the operator itself.
            self._admission.withdraw(key, () if observed.kueue.holds("Admitted") else observed.pods)
            return None
        if observed.obstacle(job.status) is not None:
            self._admission.stop(key, job, observed.pods, now)
            return None
        self._admission.report(key, job, observed.pods, now)
        return self._admission.state(key)

    async def _apply(self, key: Key, memory: JobMemory, stored: StoredJob, plan: Plan, now: datetime) -> float | None:
        """Write the status, then apply the actions; return in how many seconds to look again, None for never."""
        before, num_lost = stored.status, memory.num_lost
        may_be_kept = plan.status is not None and stored.may_be_kept(plan.status)
        if plan.status is not None:
            self._metrics.show(key, plan.status)
            if status_fields(plan.status) != status_fields(before) or stored.unreadable:
                may_be_kept = may_be_kept and not memory.is_contended
                # Written first: if the operator ends here, no pod may belong to an attempt that is not in the status.
                written = await self._write_status(key, memory, stored, plan.status)
                if written is None:
                    return 0.0
                stored = written
                self._metrics.count_assignment(before.assignment, plan.status.assignment)
        error_shown = memory.apply_error
        await self._execute(key, memory, plan, now)
        memory.note_pods(self.informer.pods(key), now)  # As they are now: some were created or deleted.
        memory.kept = stored if may_be_kept else None
        if plan.has_all_children and plan.status is not None and memory.num_lost == num_lost:
            memory.applied_for = stored.metadata.get("generation", 0), plan.status.attempt
        self._note_reported(memory, before)
        if error_shown is not None:
            return 0.0  # The status that was written above still shows that error; the next pass corrects it at once.
        if plan.requeue_at is None and (plan.status is None or plan.status.phase in FINISHED_PHASES):
            return None
        return _seconds_until(plan.requeue_at, now, memory.next_look(self.informer.pods(key), now))

    async def _write_status(
        self, key: Key, memory: JobMemory, stored: StoredJob, status: RLJobStatus
    ) -> StoredJob | None:
        """Write the status; return the job with it, or None if the job has changed and must be read again."""
        fields, version = status_fields(status), "" if memory.is_contended else stored.version
        try:
            if stored.runs_elsewhere:
                before = stored.status
                written = await replace_status(self._kube, key, memory.uid, stored.version, before, fields)
            else:
                written = await write_status(self._kube, key, memory.uid, fields, version)
        except ApiError as error:
            if not (version and error.conflict):
                raise
            memory.is_contended = True
            return None
        if written is None:
            return None
        stored = stored.written(status, written["metadata"]["resourceVersion"])
        # News of this write may hide others: what others have changed before it would be taken for it.
        memory.seen_version = "" if memory.is_contended else stored.version
        memory.is_contended = False
        return stored

    def _note_reported(self, memory: JobMemory, status: RLJobStatus) -> None:
        """Remember which rejection and notices have been reported by events, so that they are not reported again."""
        memory.reported_notice = max(memory.reported_notice, newest_notice(status.runtime))
        rejected = status.runtime.rejected_epoch if status.runtime is not None else 0
        if rejected == status.assignment.epoch and rejected > memory.reported_rejection:
            memory.reported_rejection = rejected
            self._metrics.assignment_rejections.inc()

    async def _execute(self, key: Key, memory: JobMemory, plan: Plan, now: datetime) -> None:
        executor = Executor(
            self._kube,
            on_applied=memory.applied.__setitem__,
            on_created=lambda pod: self.informer.mark_created(key, pod),
            on_found=self.informer.mark_found,
            on_deleting=lambda name, uid: self.informer.mark_deleting(key, name, uid),
        )
        actions = self._affordable(memory, plan.actions, now)
        try:
            await executor.run(key, memory.uid, actions, now)
            require_repairs(plan.actions, actions, memory.apply_error)
        except ApplyFailed as error:
            memory.apply_error = str(error)
            raise
        memory.apply_error = None

    def _affordable(self, memory: JobMemory, actions: tuple[Action, ...], now: datetime) -> list[Action]:
        """Return the actions without events that exceed the job's rate, and without repairs that are not due yet."""
        kept: list[Action] = []
        for action in actions:
            if isinstance(action, Event):
                now_s = time.monotonic()
                if memory.events.wait_s(now_s) > 0:
                    self._metrics.events_dropped.inc()
                    continue
                memory.events.take(now_s)
            if isinstance(action, LabelPod) and action.is_repair and not memory.may_repair(action.uid, now):
                continue
            kept.append(action)
        return kept


def _seconds_until(moment: datetime | None, now: datetime, resync: timedelta) -> float:
    """Return the delay until the plan's time, or until the next routine pass (spread, so that jobs do not coincide)."""
    routine_s = resync.total_seconds() * random.uniform(1.0, 1.2)
    return min(routine_s, max(0.0, (moment - now).total_seconds())) if moment is not None else routine_s
