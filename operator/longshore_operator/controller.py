"""Observe, decide, apply: one pass over one job, and what is remembered of jobs between passes."""

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from pydantic import ValidationError

from longshore.api import names
from longshore.api.limits import too_large
from longshore.api.rljob import RLJob
from longshore.api.spec import RLJobSpec
from longshore.api.status import FINISHED_PHASES, RLJobStatus
from longshore_kube.errors import ApiError, KubeError, Unreadable
from longshore_operator.admission.desk import AdmissionDesk
from longshore_operator.execute import ApplyFailed, Executor, status_fields, write_status
from longshore_operator.fairness import Bucket
from longshore_operator.handlers import JobNews
from longshore_operator.informer import Key, PodInformer
from longshore_operator.kube import KubeClient
from longshore_operator.kueue.desk import KueueDesk
from longshore_operator.kueue.view import KueueView
from longshore_operator.metrics import OperatorMetrics
from longshore_operator.notices import newest_notice
from longshore_operator.observed import ClaimView, Observed, PodView
from longshore_operator.plan import Action, Event, OperatorConfig, Plan
from longshore_operator.reconcile import reconcile, reject
from longshore_operator.schedule import PassResult, Schedule
from longshore_operator.settings import pod_settings_fingerprint
from longshore_operator.stored_job import StoredJob, parsed

RESYNC = timedelta(minutes=15)
"""Interval at which a job is reconciled and its children are applied again, even without a change."""
RESYNC_WHILE_STARTING = timedelta(seconds=20)
"""The same while a pod has a node and does not start: someone may have deleted what it mounts. Doubled each time."""
CLAIM_PATIENCE = timedelta(minutes=1)
"""How long pods may be pending before the volume claim is looked at, unless the scheduler refuses them."""
EVENT_BURST = 25
EVENTS_PER_S = 0.1
"""Long-run rate of events per job; events above it are counted but not posted."""
_SECRET_BYTES = 32
_RELIST_PAUSE_S = 5.0


log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Job:
    """What the controller remembers of a job between passes; losing it does no harm."""

    uid: str = ""
    applied: dict[tuple[str, str], str] = field(default_factory=dict)
    applied_for: tuple[int, int] = (0, 0)
    """Generation of the spec and attempt for which all children were applied."""
    applied_since: datetime | None = None
    num_starting_looks: int = 0
    """How many times children were applied again because a pod did not start."""
    apply_error: str | None = None
    pending_since: datetime | None = None
    """When a pod was first seen to be pending; None: none is."""
    bound_claim: ClaimView | None = None
    """The volume claim, once it was seen to be bound while pods start; forgotten when children are read again."""
    hashed: tuple[int, str] = (0, "")
    """Generation and the fingerprint of its settings."""
    reported_rejection: int = 0
    reported_notice: tuple[int, int] = (0, 0)
    seen_version: str = ""
    news_version: int = 0
    """Resource version of the newest news."""
    kept: StoredJob | None = None
    """The job as it was last read or written, for as long as it starts and there are no news."""
    is_contended: bool = False
    """Whether others changed the job while its status was to be written, which is then written whatever they change."""
    finished_generation: int = 0
    """Generation at which the job ended and nothing remained to be done; 0: it has not ended."""
    events: Bucket = field(default_factory=lambda: Bucket(EVENT_BURST, EVENTS_PER_S, time.monotonic()))

    def spec_hash(self, generation: int, spec: RLJobSpec) -> str:
        """Return the fingerprint of the settings in the spec, computed once per generation."""
        if self.hashed[0] != generation or not generation:
            self.hashed = (generation, pod_settings_fingerprint(spec))
        return self.hashed[1]


def utc_now() -> datetime:
    """The wall clock."""
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
        self._jobs: dict[Key, _Job] = {}
        self.schedule = Schedule(self._pass, self._forget, metrics, max_concurrency, namespace is not None)
        self._namespace = namespace
        self._kueue = KueueDesk(kube, config, namespace, self.schedule.wake)
        self._desk = AdmissionDesk(config.admission, self.schedule.wake)
        self.informer = PodInformer(
            kube,
            namespace,
            self.schedule.wake,
            on_progress=self.schedule.settle,
            on_listed=self.schedule.catch_up,
            on_synced=self.schedule.open,
        )

    def on_news(self, key: Key, news: JobNews) -> None:
        """Schedule a job that changed, unless the change is the operator's own write or the job has ended."""
        job = self._jobs.get(key)
        if job is not None:
            job.news_version = int(news.resource_version)
        if job is not None and not news.is_deleted:
            is_own = news.resource_version == job.seen_version
            if is_own or (news.generation and news.generation == job.finished_generation):
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

    async def open_admission(self) -> None:
        """List the existing jobs, if jobs have to be admitted; never return."""
        while self._desk.is_open:
            try:
                await self._desk.expect(self._existing_jobs())
                break
            except KubeError as error:
                log.warning("jobs could not be listed; none is admitted until they are", error=repr(error))
                await asyncio.sleep(_RELIST_PAUSE_S)
        await asyncio.Event().wait()

    async def _existing_jobs(self) -> AsyncIterator[list[Key]]:
        path = self._kube.path(names.KIND, self._namespace)
        async for page in self._kube.client.pages(path, metadata_only=True):
            found = (item["metadata"] for item in page.get("items") or ())
            yield [(metadata["namespace"], metadata["name"]) for metadata in found]

    def _forget(self, key: Key) -> None:
        self._jobs.pop(key, None)
        self._desk.withdraw(key, has_pods=any(pod.holds_resources for pod in self.informer.pods(key)))
        self._metrics.forget(key)

    async def _pass(self, key: Key) -> PassResult:
        """Reconcile one job."""
        now = self._clock()
        job, busy_s = self._jobs.setdefault(key, _Job()), 0.0
        stored = self._kept(key, job, now)
        if stored is None:
            found = await self._found(key)
            if found is None:
                return PassResult(exists=False)
            began_s = time.perf_counter()
            stored = parsed(found, now)
            # A whole job can have a megabyte, so no reference to it is kept while the API server is queried.
            del found
            busy_s = time.perf_counter() - began_s
        self._refresh(key, job, stored.metadata, now)
        claim = await self._claim(key, job, stored, now)
        kueue = await self._kueue_view(key, stored)
        began_s = time.perf_counter()
        plan = self._decide(key, job, stored, claim, kueue, now)
        busy_s += time.perf_counter() - began_s
        next_look_s = await self._carry_out(key, job, stored, plan, now)
        status = plan.status or stored.status.status
        is_finished = next_look_s is None and status.phase in FINISHED_PHASES
        job.finished_generation = stored.metadata.get("generation", 0) if is_finished else 0
        return PassResult(exists=True, next_look_s=next_look_s, busy_s=busy_s)

    def _kept(self, key: Key, job: _Job, now: datetime) -> StoredJob | None:
        """Return the job without reading it, if it is known: there are no news, and it was read not too long ago."""
        kept, job.kept = job.kept, None
        if kept is None or job.news_version > int(kept.version) or self._has_expired(key, job, now):
            return None
        return kept

    async def _found(self, key: Key) -> dict[str, Any] | None:
        """Return the job, or, if it cannot be read, its metadata with the reason in place of the spec."""
        try:
            return await self._kube.get(names.KIND, *key)
        except Unreadable as error:
            found = await self._kube.get(names.KIND, *key, metadata_only=True)
            return None if found is None else {"metadata": found["metadata"], "spec": too_large(str(error))}

    def _refresh(self, key: Key, job: _Job, metadata: dict[str, Any], now: datetime) -> None:
        """Forget what was applied for another job of the same name, or too long ago."""
        uid = metadata["uid"]
        if uid != job.uid or self._has_expired(key, job, now):
            if uid != job.uid:
                job.reported_rejection, job.reported_notice, job.hashed, job.apply_error = 0, (0, 0), (0, ""), None
                job.num_starting_looks = 0
            elif self._is_starting(key):
                job.num_starting_looks += 1
            job.uid, job.applied, job.applied_for, job.applied_since = uid, {}, (0, 0), now
            job.bound_claim = None
        if not self._is_starting(key):
            job.num_starting_looks = 0
        job.seen_version = metadata["resourceVersion"]

    def _has_expired(self, key: Key, job: _Job, now: datetime) -> bool:
        return job.applied_since is not None and now - job.applied_since >= self._resync(key, job)

    def _pending(self, key: Key) -> list[PodView]:
        return [pod for pod in self.informer.pods(key) if pod.phase == "Pending" and not pod.deleting]

    def _is_starting(self, key: Key) -> bool:
        return any(pod.scheduled for pod in self._pending(key))

    def _resync(self, key: Key, job: _Job) -> timedelta:
        if not self._is_starting(key):
            return RESYNC
        return min(RESYNC, RESYNC_WHILE_STARTING * (1 << min(job.num_starting_looks, 8)))

    def _decide(
        self, key: Key, job: _Job, stored: StoredJob, claim: ClaimView | None, kueue: KueueView | None, now: datetime
    ) -> Plan:
        """Return the plan for a stored job."""
        pods, status = self.informer.pods(key), stored.status.status
        generation = stored.metadata.get("generation", 0)
        if isinstance(stored.spec, ValidationError):
            self._desk.withdraw(key, has_pods=any(pod.holds_resources for pod in pods))
            return reject(status, generation, stored.spec, pods, now, kueue)
        parsed = RLJob(metadata=stored.metadata, spec=stored.spec, status=status)
        observed = Observed(
            pods=pods,
            children=job.applied,
            ray_token=secrets.token_hex(_SECRET_BYTES),
            judge_token=secrets.token_hex(_SECRET_BYTES),
            reward_token=secrets.token_hex(_SECRET_BYTES),
            claim=claim,
            kueue=kueue,
            apply_error=job.apply_error,
            reported_rejection=job.reported_rejection,
            reported_notice=job.reported_notice,
            applied_for=job.applied_for,
            spec_hash=job.spec_hash(generation, stored.spec),
            unreadable_status=stored.status.unreadable,
        )
        if kueue is None:
            observed = replace(observed, standing=self._desk.look(key, parsed, pods, now))
        else:
            self._desk.withdraw(key, has_pods=False)
        return reconcile(parsed, observed, now, self._config)

    async def _kueue_view(self, key: Key, stored: StoredJob) -> KueueView | None:
        """Return the state of Kueue for a job with a queue."""
        status = stored.status.status
        if "deletionTimestamp" in stored.metadata:
            return None
        if isinstance(stored.spec, ValidationError):
            queue = status.admission.queue if status.admission is not None else ""
            return await self._kueue.of_unreadable(key, queue) if queue else None
        return await self._kueue.look(RLJob(metadata=stored.metadata, spec=stored.spec, status=status))

    async def _claim(self, key: Key, job: _Job, stored: StoredJob, now: datetime) -> ClaimView | None:
        """Return the volume claim, which is read only while pods wait for long, or are refused by the scheduler."""
        if isinstance(stored.spec, ValidationError) or stored.status.status.phase in FINISHED_PHASES:
            return None
        pending = self._pending(key)
        if not pending:
            job.bound_claim = job.pending_since = None
            return None
        job.pending_since = job.pending_since or now
        is_refused = any(pod.unschedulable is not None for pod in pending)
        if not is_refused and now - job.pending_since < CLAIM_PATIENCE:
            return None
        name = stored.spec.storage.claim_name or names.storage_claim(key[1])
        if job.bound_claim is not None and job.bound_claim.name == name:
            return job.bound_claim
        claim = await self._kube.get("PersistentVolumeClaim", key[0], name)
        if claim is None:
            return ClaimView(name, exists=False)
        view = ClaimView(name, exists=True, phase=claim.get("status", {}).get("phase", ""))
        job.bound_claim = view if view.phase == "Bound" else None
        return view

    async def _carry_out(self, key: Key, job: _Job, stored: StoredJob, plan: Plan, now: datetime) -> float | None:
        """Write the status and apply the actions; returns in how many seconds to look again."""
        before = stored.status.status
        may_be_kept = plan.status is not None and stored.may_be_kept(plan.status)
        if plan.status is not None:
            self._metrics.show(key, plan.status)
            fields = status_fields(plan.status)
            if fields != status_fields(before) or stored.status.unreadable:
                # Written first: if the operator ends here, no pod may belong to an attempt that is not in the status.
                version = stored.version if may_be_kept and not job.is_contended else ""
                try:
                    written = await write_status(self._kube, key, job.uid, fields, version)
                except ApiError as error:
                    if not (version and error.conflict):
                        raise
                    job.is_contended = True
                    return 0.0
                job.seen_version = written["metadata"]["resourceVersion"]
                stored = stored.written(plan.status, job.seen_version)
                may_be_kept, job.is_contended = may_be_kept and not job.is_contended, False
                self._metrics.count_assignment(before.assignment, plan.status.assignment)
        error_shown = job.apply_error
        await self._execute(key, job, plan, now)
        job.kept = stored if may_be_kept else None
        if plan.has_all_children and plan.status is not None:
            job.applied_for = stored.metadata.get("generation", 0), plan.status.attempt
        self._note_reported(job, before)
        if error_shown is not None:
            return 0.0  # The status that was written above still shows that error; the next pass corrects it at once.
        if plan.requeue_at is None and (plan.status is None or plan.status.phase in FINISHED_PHASES):
            return None
        routine = self._resync(key, job)
        if self._pending(key) and (job.pending_since is None or now - job.pending_since < CLAIM_PATIENCE):
            routine = min(routine, CLAIM_PATIENCE)
        return _seconds_until(plan.requeue_at, now, routine)

    def _note_reported(self, job: _Job, status: RLJobStatus) -> None:
        """Remember which rejection and notices have been reported by events, so that they are not reported again."""
        job.reported_notice = max(job.reported_notice, newest_notice(status.runtime))
        rejected = status.runtime.rejected_epoch if status.runtime is not None else 0
        if rejected == status.assignment.epoch and rejected > job.reported_rejection:
            job.reported_rejection = rejected
            self._metrics.assignment_rejections.inc()

    async def _execute(self, key: Key, job: _Job, plan: Plan, now: datetime) -> None:
        executor = Executor(
            self._kube,
            on_applied=job.applied.__setitem__,
            on_created=lambda pod: self.informer.mark_created(key, pod),
            on_deleting=lambda name, uid: self.informer.mark_deleting(key, name, uid),
        )
        try:
            await executor.run(key, job.uid, self._affordable(job, plan.actions), now)
        except ApplyFailed as error:
            job.apply_error = str(error)
            raise
        job.apply_error = None

    def _affordable(self, job: _Job, actions: tuple[Action, ...]) -> list[Action]:
        """Return the actions without events that exceed the job's rate."""
        kept: list[Action] = []
        for action in actions:
            if isinstance(action, Event):
                now_s = time.monotonic()
                if job.events.wait_s(now_s) > 0:
                    self._metrics.events_dropped.inc()
                    continue
                job.events.take(now_s)
            kept.append(action)
        return kept


def _seconds_until(moment: datetime | None, now: datetime, resync: timedelta) -> float:
    """Return the delay until the plan's time, or until the next routine pass (spread, so that jobs do not coincide)."""
    routine_s = resync.total_seconds() * random.uniform(1.0, 1.2)
    return min(routine_s, max(0.0, (moment - now).total_seconds())) if moment is not None else routine_s
