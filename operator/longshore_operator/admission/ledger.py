"""The jobs that want or hold GPUs, as far as their passes have told. Pure: it decides when it is asked to.

A decision counts at once, here, and is written by the pass of its job: a job that was admitted holds its GPUs from then
on, and a job that was preempted until its pods are gone. What was not written is lost with the process; then no pod of
the job exists either, or all of them still do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from longshore.api import names
from longshore.api.reasons import AdmittedReason
from longshore.api.rljob import RLJob
from longshore.api.status import FINISHED_PHASES, Phase
from longshore_operator.admission.config import AdmissionConfig
from longshore_operator.admission.demand import GpuRequest, Key, Limits, Stage, gang
from longshore_operator.admission.queue import Wait, Why, decide
from longshore_operator.observed import PodView, Standing

_NUM_UPDATED_AT_ONCE = 8
"""Jobs at the front of the queue learn at once of every change; the others at their next look. So a change costs no
write for each job that waits."""


@dataclass(frozen=True, slots=True)
class Application:
    """What a job says of itself: a request, or a mistake that keeps it out of the queue."""

    request: GpuRequest | None = None
    mistake: str = ""


def application(job: RLJob, pods: Iterable[PodView], config: AdmissionConfig) -> Application:
    """How a stored job stands to GPUs, by its status and its pods. Nothing limits a job that makes no request."""
    status, spec, limits = job.status, job.spec, config.limits
    key = (str(job.metadata["namespace"]), str(job.metadata["name"]))
    needed = gang(spec)
    if status.admission is not None and status.admission.queue:
        return Application()  # It is, or was, in a queue of Kueue, which counts it.
    if limits is None or not (limits.demand(key[0], needed) or status.admission):
        return Application()
    label = (job.metadata.get("labels") or {}).get(names.LABEL_PRIORITY_CLASS)
    priorities = config.priorities(key[0])
    priority = 0 if label is None else priorities.get(label)
    request = GpuRequest(key, needed, priority or 0, str(job.metadata.get("creationTimestamp", "")))
    recorded = status.admission
    held = recorded.gpus if recorded is not None else {}
    leaving = replace(request, gpus=held, stage=Stage.LEAVING)
    has_pods = any(pod.holds_resources for pod in pods)
    is_out = status.phase in FINISHED_PHASES or "deletionTimestamp" in job.metadata or spec.suspend
    if is_out or (recorded is not None and not recorded.admitted and held and has_pods):
        return Application(leaving if held and has_pods else None)
    if recorded is not None and recorded.admitted:
        return Application(replace(request, gpus=held, stage=Stage.ADMITTED))
    if recorded is None and status.attempt > 0 and status.phase not in (Phase.SUSPENDED, Phase.QUEUED):
        # It ran before anybody had to be admitted.
        return Application(replace(request, stage=Stage.ADMITTED))
    if priority is None:
        known = ", ".join(sorted(priorities)) or "none"
        return Application(
            mistake=f"jobs of namespace {key[0]} may not use a priority class {label}: set the label "
            f"{names.LABEL_PRIORITY_CLASS} to one that the operator's admission has for them ({known}), or remove it"
        )
    return Application(request)


class Ledger:
    """Requests by job, and what was decided about them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._requests: dict[Key, GpuRequest] = {}
        self._mistakes: dict[Key, str] = {}
        self._unwritten_admissions: set[Key] = set()
        """Admitted here; their status does not say so yet, so what a pass reads of them is out of date."""
        self._unwritten_preemptions: set[Key] = set()
        """Preempted here, likewise."""
        self._preempted: set[Key] = set()
        """Jobs that were preempted and whose pods have not all ended."""
        self._waiting: Mapping[Key, Wait] = {}

    def note(self, key: Key, application: Application) -> bool:
        """What a pass saw of a job; returns whether there may be something to decide."""
        before, request = self._requests.get(key), application.request
        if request is None:
            self.forget(key)
            if application.mistake:
                self._mistakes[key] = application.mistake
            return before is not None
        self._mistakes.pop(key, None)
        if key in self._unwritten_admissions and request.stage is Stage.WAITING:
            request = replace(request, stage=Stage.ADMITTED)
        elif key in self._unwritten_preemptions and request.stage is Stage.ADMITTED:
            request = replace(request, stage=Stage.LEAVING)
        else:
            self._unwritten_admissions.discard(key)
            self._unwritten_preemptions.discard(key)
        if request.stage is not Stage.LEAVING:
            self._preempted.discard(key)
        self._requests[key] = request
        return request != before

    def forget(self, key: Key) -> bool:
        """The job holds nothing and wants nothing; returns whether it did."""
        self._mistakes.pop(key, None)
        for keys in (self._unwritten_admissions, self._unwritten_preemptions, self._preempted):
            keys.discard(key)
        return self._requests.pop(key, None) is not None

    def leave(self, key: Key) -> bool:
        """The job was deleted, and its pods still end; returns whether that is new."""
        request = self._requests.get(key)
        if request is None or request.stage is Stage.LEAVING:
            return False
        self._requests[key] = replace(request, stage=Stage.LEAVING)
        return True

    def decide(self) -> set[Key]:
        """Decide about all jobs; returns those of which a pass has something new to write."""
        decision = decide(self._requests.values(), self._limits)
        for key in decision.admitted:
            self._requests[key] = replace(self._requests[key], stage=Stage.ADMITTED)
            self._unwritten_admissions.add(key)
        for key in decision.preempted:
            self._requests[key] = replace(self._requests[key], stage=Stage.LEAVING)
            self._unwritten_preemptions.add(key)
            self._preempted.add(key)
            self._unwritten_admissions.discard(key)
        before, self._waiting = self._waiting, decision.waiting
        changed = {key for key, wait in decision.waiting.items() if _is_news(before.get(key), wait)}
        return {*decision.admitted, *decision.preempted, *changed}

    def standing(self, key: Key) -> Standing | None:
        """Whether the job is admitted, in words for people; None: nothing limits it."""
        if key in self._mistakes:
            return Standing(False, AdmittedReason.PRIORITY_CLASS_NOT_FOUND, self._mistakes[key])
        request = self._requests.get(key)
        if request is None:
            return None
        if request.stage is Stage.ADMITTED:
            gpus = ", ".join(f"{count} {resource}" for resource, count in sorted(request.gpus.items()))
            return Standing(True, AdmittedReason.ADMITTED, f"the job may use {gpus}", request.gpus)
        if key in self._preempted:
            return Standing(False, AdmittedReason.PREEMPTED, "a job of higher priority gets its GPUs", request.gpus)
        if request.stage is Stage.LEAVING:
            message = "pods of the job still end and hold their GPUs"
            return Standing(False, AdmittedReason.QUOTA_PENDING, message, request.gpus)
        wait = self._waiting.get(key)
        if wait is None:
            return Standing(False, AdmittedReason.QUOTA_PENDING, "")
        if wait.why is Why.TOO_LARGE:
            return Standing(False, AdmittedReason.TOO_LARGE, sentence(key, wait))
        return Standing(False, AdmittedReason.QUOTA_PENDING, sentence(key, wait), position=wait.num_ahead + 1)


def sentence(key: Key, wait: Wait) -> str:
    """Why a job waits. Jobs of other namespaces are not named."""
    needs, available = f"the job needs {wait.needed} {wait.resource}", wait.available
    if wait.why is Why.TOO_LARGE:
        fix = "lower replicas or gpusPerPod of workers, trainerWorkers or judge pools, or raise the limits"
        return f"{needs} and may have {available} at most: {fix}"
    if wait.why is Why.BEHIND:
        assert wait.head is not None, "a job waits behind another"
        head = wait.head[1] if wait.head[0] == key[0] else "a job of another namespace"
        return f"{needs}, which {head} may need: it is ahead and waits for more"
    if wait.why is Why.PREEMPTING:
        return f"{needs}; jobs of lower priority are being stopped"
    whose = f"left of the quota of namespace {key[0]}" if wait.why is Why.NO_QUOTA else "free"
    ahead = f"; {wait.num_ahead} {'job is' if wait.num_ahead == 1 else 'jobs are'} ahead" if wait.num_ahead else ""
    return f"{needs}, and {available} {'is' if available == 1 else 'are'} {whose}{ahead}"


def _is_news(before: Wait | None, now: Wait) -> bool:
    if before is None or now.num_ahead < _NUM_UPDATED_AT_ONCE:
        return before != now
    return (before.why is Why.TOO_LARGE) != (now.why is Why.TOO_LARGE)
