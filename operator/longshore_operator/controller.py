"""Observe, decide, apply: one pass over one job."""

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from pydantic import ValidationError

from longshore.api import names
from longshore.api.limits import too_large
from longshore.api.rljob import RLJob
from longshore.api.status import FINISHED_PHASES, RLJobStatus
from longshore_kube.errors import ApiError, Unreadable
from longshore_operator.admission.desk import AdmissionDesk
from longshore_operator.child_watch import ChildWatch, lost_secrets
from longshore_operator.execute import (
    ApplyFailed,
    Executor,
    replace_status,
    require_repairs,
    status_fields,
    write_status,
)
from longshore_operator.existing_jobs import ExistingJobs
from longshore_operator.handlers import JobNews
from longshore_operator.hidden_pods import LOOK_EVERY_S, HiddenPods, has_hidden
from longshore_operator.informer import Key, PodInformer
from longshore_operator.job_memory import JobMemory
from longshore_operator.kube import KubeClient
from longshore_operator.kueue.desk import KueueDesk
from longshore_operator.kueue.view import KueueView
from longshore_operator.metrics import OperatorMetrics
from longshore_operator.notices import newest_notice
from longshore_operator.observed import Observed
from longshore_operator.plan import Action, Event, LabelPod, OperatorConfig, Plan
from longshore_operator.pod_group.desk import PodGroupDesk
from longshore_operator.pod_group.view import PodGroupView
from longshore_operator.reconcile import reconcile, reject
from longshore_operator.schedule import PassResult, Schedule
from longshore_operator.stored_job import StoredJob, read_job
from longshore_operator.volume_claim import read_claim

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
        self._memories: dict[Key, JobMemory] = {}
        self.schedule = Schedule(self._pass, self._forget, metrics, max_concurrency, namespace is not None)
        self._existing = ExistingJobs(kube, namespace)
        self._kueue = KueueDesk(kube, config, namespace, self.schedule.wake)
        self._pod_groups = PodGroupDesk(kube, config)
        self._desk = AdmissionDesk(config.admission, self.schedule.wake)
        self.informer = PodInformer(
            kube,
            namespace,
            self.schedule.wake,
            on_progress=self.schedule.settle,
            on_listed=self.schedule.catch_up,
            on_synced=self.schedule.open,
        )
        self._hidden = HiddenPods(kube, self.informer)
        self._children = ChildWatch(
            kube, namespace, self._memories, self.schedule.wake, network_policies=config.network_policies
        )

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
        self._desk.close()
        await self.schedule.close()

    async def follow_kueue(self) -> None:
        """Wake jobs whose Workloads change; never return."""
        await self._kueue.run()

    async def follow_children(self) -> None:
        """Wake jobs whose children are deleted; never return."""
        await self._children.run()

    async def open_admission(self) -> None:
        """List the existing jobs, if jobs have to be admitted; never return."""
        await self._existing.admit_once_known(self._desk)

    async def find_deletions(self) -> None:
        """Wake jobs that are not there any more, although the watch did not say so; never return."""
        await self._existing.find_deletions(lambda: self._memories, self.schedule.wake)

    def _forget(self, key: Key) -> None:
        self._memories.pop(key, None)
        self._desk.withdraw(key, has_pods=any(pod.holds_resources for pod in self.informer.pods(key)))
        self._metrics.forget(key)

    async def _pass(self, key: Key) -> PassResult:
        """Reconcile one job."""
        await self._hidden.look(key)
        now = self._clock()
        memory, pods, busy_s = self._memories.setdefault(key, JobMemory()), self.informer.pods(key), 0.0
        stored = memory.take_kept(pods, now)
        if stored is None:
            found = await self._found(key)
            if found is None:
                self._forget(key)
                is_left = has_hidden(self.informer.pods(key))
                return PassResult(exists=is_left, next_look_s=LOOK_EVERY_S if is_left else None)
            began_s = time.perf_counter()
            stored = read_job(found, now)
            # A whole job can have a megabyte, so no reference to it is kept while the API server is queried.
            del found
            busy_s = time.perf_counter() - began_s
        memory = memory.refreshed(stored.metadata["uid"], stored.version, self.informer.pods(key), now)
        self._memories[key] = memory
        around = await self._around(key, memory, stored, now)
        began_s = time.perf_counter()
        plan = self._decide(key, memory, stored, around, now)
        busy_s += time.perf_counter() - began_s
        next_look_s = await self._carry_out(key, memory, stored, plan, now)
        status = plan.status or stored.status.status
        is_finished = next_look_s is None and status.phase in FINISHED_PHASES
        memory.finished_generation = stored.metadata.get("generation", 0) if is_finished else 0
        if has_hidden(self.informer.pods(key)):
            next_look_s = min(LOOK_EVERY_S, next_look_s if next_look_s is not None else LOOK_EVERY_S)
        return PassResult(exists=True, next_look_s=next_look_s, busy_s=busy_s)

    async def _around(self, key: Key, memory: JobMemory, stored: StoredJob, now: datetime) -> Observed:
        """Return what a decision reads besides the job and its pods."""
        try:
            pod_group = await self._pod_group_view(stored)
            around = Observed(
                claim=await read_claim(self._kube, memory, stored, self.informer.pods(key), now),
                pod_group=pod_group,
                kueue=await self._kueue_view(key, stored, pod_group),
                lost_secrets=await lost_secrets(self._kube, stored, memory, self.informer.pods(key)),
            )
            memory.searched_for = await self._hidden.search(key, stored, memory.searched_for)
            return around
        except Exception:
            # The pass fails, and may fail again: admission must not wait for this job.
            if not isinstance(stored.spec, ValidationError):
                job = RLJob(metadata=stored.metadata, spec=stored.spec, status=stored.status.status)
                self._desk.recover(key, job, self.informer.pods(key), now)
            raise

    async def _found(self, key: Key) -> dict[str, Any] | None:
        """Return the job, or, if it cannot be read, its metadata with the reason in place of the spec."""
        try:
            return await self._kube.get(names.KIND, *key)
        except Unreadable as error:
            found = await self._kube.get(names.KIND, *key, metadata_only=True)
            return None if found is None else {"metadata": found["metadata"], "spec": too_large(str(error))}

    def _decide(self, key: Key, memory: JobMemory, stored: StoredJob, around: Observed, now: datetime) -> Plan:
        """Return the plan for a stored job; `around`: what was read besides it."""
        pods, status = self.informer.pods(key), stored.status.status
        generation = stored.metadata.get("generation", 0)
        has_pods = any(pod.holds_resources for pod in pods)
        if isinstance(stored.spec, ValidationError):
            self._desk.withdraw(key, has_pods=has_pods)
            return reject(status, generation, stored.spec, pods, now, around.kueue)
        parsed = RLJob(metadata=stored.metadata, spec=stored.spec, status=status)
        observed = replace(
            around,
            pods=pods,
            children=memory.applied,
            ray_token=secrets.token_hex(_SECRET_BYTES),
            judge_token=secrets.token_hex(_SECRET_BYTES),
            reward_token=secrets.token_hex(_SECRET_BYTES),
            apply_error=memory.apply_error,
            reported_rejection=memory.reported_rejection,
            reported_notice=memory.reported_notice,
            applied_for=memory.applied_for,
            spec_hash=memory.spec_hash(generation, stored.spec),
            unreadable_status=stored.status.unreadable,
        )
        if around.kueue is not None:
            # Pods of a job that Kueue has not admitted are left of an admission by the operator itself.
            self._desk.withdraw(key, has_pods=not around.kueue.holds("Admitted") and has_pods)
        elif around.obstacle(status) is not None:
            self._desk.stop(key, parsed, pods, now)
        else:
            observed = replace(observed, standing=self._desk.look(key, parsed, pods, now))
        try:
            plan = reconcile(parsed, observed, now, self._config)
        except Exception:
            if not has_pods:
                self._desk.withdraw(key, has_pods=False)  # It would raise again, and others wait for its GPUs.
            raise
        if plan.status is not None and plan.status.phase in FINISHED_PHASES:
            self._desk.withdraw(key, has_pods=has_pods)  # There may be no further pass, as nothing may change any more.
        return plan

    async def _pod_group_view(self, stored: StoredJob) -> PodGroupView | None:
        """Return the state of the PodGroup of a job that wants one."""
        if "deletionTimestamp" in stored.metadata or isinstance(stored.spec, ValidationError):
            return None
        if stored.spec.runs_elsewhere:
            return None
        return await self._pod_groups.look(RLJob(metadata=stored.metadata, spec=stored.spec))

    async def _kueue_view(self, key: Key, stored: StoredJob, pod_group: PodGroupView | None) -> KueueView | None:
        """Return the state of Kueue for a job with a queue."""
        status = stored.status.status
        if isinstance(stored.spec, ValidationError):
            queue = status.admission.queue if status.admission is not None else ""
            return await self._kueue.of_unreadable(key, queue) if queue else None
        view = await self._kueue.look(RLJob(metadata=stored.metadata, spec=stored.spec, status=status))
        if view is not None and pod_group is not None and pod_group.keeps_waiting(status):
            view = replace(view, mistake=view.mistake or pod_group.mistake)
        return view

    async def _carry_out(
        self, key: Key, memory: JobMemory, stored: StoredJob, plan: Plan, now: datetime
    ) -> float | None:
        """Write the status and apply the actions; returns in how many seconds to look again."""
        before = stored.status.status
        may_be_kept = plan.status is not None and stored.may_be_kept(plan.status)
        num_lost = memory.num_lost
        if plan.status is not None:
            self._metrics.show(key, plan.status)
            fields = status_fields(plan.status)
            if fields != status_fields(before) or stored.status.unreadable:
                # Written first: if the operator ends here, no pod may belong to an attempt that is not in the status.
                version = "" if memory.is_contended else stored.version
                try:
                    written = await (
                        replace_status(self._kube, key, memory.uid, stored.version, before, fields)
                        if stored.runs_elsewhere
                        else write_status(self._kube, key, memory.uid, fields, version)
                    )
                except ApiError as error:
                    if not (version and error.conflict):
                        raise
                    memory.is_contended = True
                    return 0.0
                if written is None:
                    return 0.0
                stored = stored.written(plan.status, written["metadata"]["resourceVersion"])
                # News of several changes are merged: what others have changed before this write would be taken for it.
                memory.seen_version = "" if memory.is_contended else stored.version
                may_be_kept, memory.is_contended = may_be_kept and not memory.is_contended, False
                self._metrics.count_assignment(before.assignment, plan.status.assignment)
        error_shown = memory.apply_error
        await self._execute(key, memory, plan, now)
        memory.kept = stored if may_be_kept else None
        if plan.has_all_children and plan.status is not None and memory.num_lost == num_lost:
            memory.applied_for = stored.metadata.get("generation", 0), plan.status.attempt
        self._note_reported(memory, before)
        if error_shown is not None:
            return 0.0  # The status that was written above still shows that error; the next pass corrects it at once.
        if plan.requeue_at is None and (plan.status is None or plan.status.phase in FINISHED_PHASES):
            return None
        return _seconds_until(plan.requeue_at, now, memory.next_look(self.informer.pods(key), now))

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
