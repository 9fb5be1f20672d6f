"""The jobs that want or hold GPUs, as far as their passes have reported them. Pure: it decides when it is asked to.

A decision counts at once, here, and is written by the pass of its job: a job that was admitted holds its GPUs from then
on, and a job that was preempted until its pods are gone. What was not written is lost with the process; then no pod of
the job exists either, or all of them still do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from longshore.api import names
from longshore.api.names import Component
from longshore.api.reasons import AdmittedReason
from longshore.api.rljob import RLJob
from longshore.api.status import FINISHED_PHASES, Phase
from longshore_kube.times import parse_time
from longshore_operator.admission.demand import Extra, GpuRequest, Gpus, Limits, Stage, gang
from longshore_operator.admission.queue import Wait, Why, carried_out, decide
from longshore_operator.attempts import is_held
from longshore_operator.config import AdmissionConfig
from longshore_operator.context import Admission
from longshore_operator.identity import Key
from longshore_operator.pod_view import PodView, hold_resources
from longshore_operator.size import is_acknowledged, num_in_use

_NUM_UPDATED_AT_ONCE = 8
"""Jobs at the front of the queue learn at once of every change; the others at their next look. So a change costs no
write for each job that waits."""


@dataclass(frozen=True, slots=True)
class Application:
    """Application of a job: a request, or a mistake that keeps it out of the queue."""

    request: GpuRequest | None = None
    mistake: str = ""


def application(job: RLJob, pods: Iterable[PodView], config: AdmissionConfig, now: datetime) -> Application:
    """Return the GPU request or mistake of a stored job, by its status and pods. No request means no limit."""
    status, spec, limits = job.status, job.spec, config.limits
    key = (str(job.metadata["namespace"]), str(job.metadata["name"]))
    if status.admission is not None and status.admission.queue:
        return Application()  # It is, or was, in a queue of Kueue, which counts it.
    if limits is None or not (limits.demand(key[0], gang(spec)) or status.admission):
        return Application()
    pods = tuple(pods)
    extra = _extra(job, pods, limits, now - timedelta(seconds=config.shrink_timeout_s))
    needed = gang(spec, spec.workers.least_replicas if extra is not None else None)
    label = (job.metadata.get("labels") or {}).get(names.LABEL_PRIORITY_CLASS)
    priorities = config.priorities(key[0])
    priority = 0 if label is None else priorities.get(label)
    created = str(job.metadata.get("creationTimestamp", ""))
    waiting = replace(extra, num_granted=0, num_held=0, is_settled=True) if extra is not None else None
    request = GpuRequest(key, needed, priority or 0, created, extra=waiting)
    running = replace(request, stage=Stage.ADMITTED, extra=extra)
    recorded = status.admission
    held = recorded.gpus if recorded is not None else {}
    leaving = replace(request, gpus=held, stage=Stage.LEAVING, extra=None)
    has_pods = hold_resources(pods)
    is_out = status.phase in FINISHED_PHASES or "deletionTimestamp" in job.metadata or spec.suspend or is_held(status)
    if is_out or (recorded is not None and not recorded.admitted and held and has_pods):
        return Application(leaving if held and has_pods else None)
    if recorded is not None and recorded.admitted:
        return Application(running if extra is not None else replace(running, gpus=held))
    if recorded is None and status.attempt > 0 and status.phase not in (Phase.SUSPENDED, Phase.QUEUED):
        # It ran before anybody had to be admitted.
        return Application(running)
    if priority is None:
        known = ", ".join(sorted(priorities)) or "none"
        return Application(
            mistake=f"jobs of namespace {key[0]} may not use a priority class {label}: set the label "
            f"{names.LABEL_PRIORITY_CLASS} to one that the operator's admission has for them ({known}), or remove it"
        )
    return Application(request)


def _extra(job: RLJob, pods: tuple[PodView, ...], limits: Limits, overdue_since: datetime) -> Extra | None:
    """Return the worker pods of an elastic job beyond those that it needs; None where nothing limits its workers."""
    workers, status, namespace = job.spec.workers, job.status, str(job.metadata["namespace"])
    resource, least = workers.gpu_resource_name, workers.least_replicas
    if not (workers.is_elastic and workers.gpus_per_pod and limits.demand(namespace, {resource: 1})):
        return None
    granted = status.admission.workers if status.admission is not None else None
    num_granted = min(max(granted or workers.replicas, least), workers.replicas)
    # A pod with the labels of the job that is not its own is deleted, and must not count for many until then.
    num_most, owner = max(workers.replicas, num_in_use(job)), job.metadata["uid"]
    mine = (pod for pod in pods if pod.component is Component.WORKER and pod.owner_uid == owner)
    indices = [pod.index for pod in mine if pod.holds_resources and pod.index < num_most]
    num_held = max(num_granted, num_in_use(job), *(index + 1 for index in indices))
    asked = status.assignment.size
    runs_with = asked.workers if asked is not None else workers.replicas
    since = status.admission.shrinking_since if status.admission is not None else None
    step = job.spec.pods_per_step
    return Extra(
        resource=resource,
        gpus_per_set=workers.gpus_per_pod * step,
        num_most=(workers.replicas - least) // step,
        num_granted=(num_granted - least) // step,
        num_held=-(-(num_held - least) // step),
        pods_per_set=step,
        is_settled=runs_with == num_granted == num_held and is_acknowledged(status),
        is_overdue=since is not None and num_held > num_granted and parse_time(since) <= overdue_since,
    )


class Ledger:
    """Requests by job, and what was decided about them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._requests: dict[Key, GpuRequest] = {}
        self._mistakes: dict[Key, str] = {}
        self._unwritten_admissions: set[Key] = set()
        """Admitted here; their status does not say so yet, so what a pass reads of them is out of date."""
        self._unwritten_preemptions: set[Key] = set()
        """Preempted here; their status does not say so yet."""
        self._unwritten_sizes: dict[Key, int] = {}
        """Sets of pods that elastic jobs may have beyond those that they need; their status does not say so yet."""
        self._preempted: dict[Key, str] = {}
        """Jobs that were preempted and whose pods have not all ended, and why, for people."""
        self._waiting: Mapping[Key, Wait] = {}

    def note(self, key: Key, application: Application) -> bool:
        """Note what a pass saw of a job; return whether there may be something to decide."""
        before, request = self._requests.get(key), application.request
        if request is None:
            self.forget(key)
            if application.mistake:
                self._mistakes[key] = application.mistake
            return before is not None
        self._mistakes.pop(key, None)
        if key in self._unwritten_admissions and request.stage is Stage.WAITING and _asks_for_the_same(before, request):
            request = replace(request, stage=Stage.ADMITTED)
        elif key in self._unwritten_preemptions and request.stage is Stage.ADMITTED:
            request = request.leaving()
        else:
            self._unwritten_admissions.discard(key)
            self._unwritten_preemptions.discard(key)
        if request.stage is not Stage.LEAVING:
            self._preempted.pop(key, None)
        request = self._requests[key] = self._resized(request)
        return request != before

    def _resized(self, request: GpuRequest) -> GpuRequest:
        """Return the request with the size that was decided, as long as the status has another."""
        num_pods = self._unwritten_sizes.get(request.key)
        if num_pods is None or request.extra is None or request.stage is not Stage.ADMITTED:
            self._unwritten_sizes.pop(request.key, None)
            return request
        if request.extra.num_granted == num_pods:
            del self._unwritten_sizes[request.key]
            return request
        return replace(request, extra=request.extra.granting(num_pods))

    def forget(self, key: Key) -> bool:
        """Forget the job, which holds nothing and wants nothing; returns whether it was known."""
        self._mistakes.pop(key, None)
        for keys in (self._unwritten_admissions, self._unwritten_preemptions):
            keys.discard(key)
        self._preempted.pop(key, None)
        self._unwritten_sizes.pop(key, None)
        return self._requests.pop(key, None) is not None

    def leave(self, key: Key) -> bool:
        """Note that the job was deleted, and its pods still end; returns whether that is new."""
        request = self._requests.get(key)
        if request is None or request.stage is Stage.LEAVING:
            return False
        self._requests[key] = request.leaving()
        return True

    def decide(self) -> set[Key]:
        """Decide about all jobs; returns those of which a pass has something new to write."""
        decision = decide(self._requests.values(), self._limits)
        self._preempted |= {key: _why_preempted(self._requests[key]) for key in decision.preempted}
        touched = {*decision.admitted, *decision.preempted, *decision.sizes}
        for key in touched:
            self._requests[key] = carried_out(self._requests[key], decision)
        self._unwritten_admissions.update(decision.admitted)
        self._unwritten_sizes.update(decision.sizes)
        for key in decision.preempted:
            self._unwritten_preemptions.add(key)
            self._unwritten_admissions.discard(key)
        before, self._waiting = self._waiting, decision.waiting
        changed = {key for key, wait in decision.waiting.items() if _is_news(before.get(key), wait)}
        return {*touched, *changed}

    def state(self, key: Key) -> Admission | None:
        """Return whether the job is admitted, in words for people; None: nothing limits it."""
        if key in self._mistakes:
            return Admission(False, AdmittedReason.PRIORITY_CLASS_NOT_FOUND, self._mistakes[key])
        request = self._requests.get(key)
        if request is None:
            return None
        if request.stage is Stage.ADMITTED:
            return _admitted(request)
        if key in self._preempted:
            return Admission(False, AdmittedReason.PREEMPTED, self._preempted[key], request.gpus)
        if request.stage is Stage.LEAVING:
            message = "pods of the job still end and hold their GPUs"
            return Admission(False, AdmittedReason.QUOTA_PENDING, message, request.gpus)
        wait = self._waiting.get(key)
        if wait is None:
            return Admission(False, AdmittedReason.QUOTA_PENDING, "")
        if wait.why is Why.TOO_LARGE:
            return Admission(False, AdmittedReason.TOO_LARGE, sentence(key, wait))
        return Admission(False, AdmittedReason.QUOTA_PENDING, sentence(key, wait), position=wait.num_ahead + 1)


def _asks_for_the_same(admitted: GpuRequest | None, request: GpuRequest) -> bool:
    """Return whether the admission of a job also covers what it asks for now."""
    if admitted is None or admitted.gpus != request.gpus:
        return False
    shapes = [
        None if one is None else (one.resource, one.gpus_per_set, one.num_most)
        for one in (admitted.extra, request.extra)
    ]
    return shapes[0] == shapes[1]


def _why_preempted(request: GpuRequest) -> str:
    if request.extra is not None and request.extra.is_overdue:
        return "it did not give worker pods back in time, and another job gets its GPUs"
    return "a job of higher priority gets its GPUs"


def _admitted(request: GpuRequest) -> Admission:
    extra, held = request.extra, request.held
    returning = extra.gpus(extra.num_held - extra.num_granted) if extra is not None else {}
    usable = {resource: count - returning.get(resource, 0) for resource, count in held.items()}
    message = f"the job may use {_listed(usable)}"
    if returning:
        message += f", and gives {_listed(returning)} back"
    admission = Admission(True, AdmittedReason.ADMITTED, message, held)
    if extra is None:
        return admission
    return replace(admission, num_extra_workers=extra.num_granted * extra.pods_per_set, is_shrinking=bool(returning))


def _listed(gpus: Gpus) -> str:
    return ", ".join(f"{count} {resource}" for resource, count in sorted(gpus.items()) if count)


def sentence(key: Key, wait: Wait) -> str:
    """Return why a job waits, without the names of jobs of other namespaces."""
    needs, available = f"the job needs {wait.needed} {wait.resource}", wait.available
    if wait.why is Why.TOO_LARGE:
        fix = "lower replicas or gpusPerPod of workers, trainerWorkers or judge pools, or raise the limits"
        return f"{needs} and may have {available} at most: {fix}"
    if wait.why is Why.BEHIND:
        assert wait.head is not None, "a job waits behind another"
        head = wait.head[1] if wait.head[0] == key[0] else "a job of another namespace"
        return f"{needs}, which {head} may need: it is ahead and waits for more"
    if wait.why is Why.SHRINKING:
        return f"{needs}; elastic jobs are giving GPUs back"
    if wait.why is Why.PREEMPTING:
        return f"{needs}; jobs of lower priority are being stopped"
    whose = f"left of the quota of namespace {key[0]}" if wait.why is Why.NO_QUOTA else "free"
    ahead = f"; {wait.num_ahead} {'job is' if wait.num_ahead == 1 else 'jobs are'} ahead" if wait.num_ahead else ""
    return f"{needs}, and {available} {'is' if available == 1 else 'are'} {whose}{ahead}"


def _is_news(before: Wait | None, now: Wait) -> bool:
    if before is None or now.num_ahead < _NUM_UPDATED_AT_ONCE:
        return before != now
    return (before.why is Why.TOO_LARGE) != (now.why is Why.TOO_LARGE)
