"""All jobs for their page, and a history of their GPUs as long as the page is served."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pydantic import ValidationError

from longshore.api import names
from longshore.api.spec import RLJobSpec
from longshore.api.status import ConditionType, Phase
from longshore.page.fleet import FleetJob, FleetMoment, FleetView
from longshore_client.kube import Kube
from longshore_client.view import JobView, job_view, problems, verdict
from longshore_kube.resources import Json, Resource

_RLJOBS: Final = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)
_FRESH_S: Final = 3.0
"""Browsers that ask within this time get the same answer."""
_MAX_MOMENTS: Final = 2_000
_QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
_ROLES: Final = ("rollout", "trainer", "judge")
_HOLD_UP: Final = (ConditionType.ADMITTED, ConditionType.SCHEDULED, ConditionType.READY)


class JobFleet:
    """The jobs of a namespace, or of all; any thread may ask."""

    def __init__(self, kube: Kube, namespace: str | None, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._namespace = namespace
        self._clock = clock
        self._lock = threading.Lock()
        """Held while the API server is asked: others wait for the same answer."""
        self._view: FleetView | None = None

    def view(self) -> FleetView:
        """Return the jobs as of now, or as of a few seconds ago."""
        with self._lock:
            now_s = self._clock()
            # A clock that is set back must not make the view fresh for ever.
            if self._view is None or not 0 <= now_s - self._view.written_s < _FRESH_S:
                jobs = fleet_jobs(self._kube.items(_RLJOBS.path(self._namespace or "")))
                before = self._view.history if self._view else ()
                self._view = FleetView(
                    written_s=now_s, namespace=self._namespace, jobs=jobs, history=extended(before, now_s, jobs)
                )
            return self._view


def fleet_jobs(found: Iterable[Json]) -> tuple[FleetJob, ...]:
    """Return RLJobs as rows: those with alarms or problems first, then the unfinished, then the newest."""
    jobs = [_row(job) for job in found]
    jobs.sort(key=lambda job: job.created, reverse=True)
    return tuple(sorted(jobs, key=lambda job: (job.is_finished, not (job.waits_for or job.alarms))))


def extended(before: Sequence[FleetMoment], now_s: float, jobs: Iterable[FleetJob]) -> tuple[FleetMoment, ...]:
    """Return the history with this moment; of a long one every second moment stays."""
    gpus = dict.fromkeys((*_ROLES, "waiting"), 0)
    for job in jobs:
        for role, count in job.gpus.items():
            gpus[role] += count
        if not job.is_finished and not any(job.gpus.values()):
            gpus["waiting"] += job.demand
    kept = before[::2] if len(before) >= _MAX_MOMENTS else before
    return (*kept, FleetMoment(time_s=now_s, gpus=gpus))


def _row(job: Json) -> FleetJob:
    view = job_view(job)
    status, runtime = view.status, view.runtime
    has_round = any(one.rounds for one in (runtime.short, runtime.long, runtime.full))
    return FleetJob(
        namespace=view.namespace,
        name=view.name,
        phase=view.phase.value,
        is_finished=view.is_finished,
        strategy=view.strategy,
        created=job["metadata"].get("creationTimestamp") or "",
        step=runtime.step,
        steps=view.steps,
        reward=runtime.reward,
        bubble_share=runtime.bubble_share if has_round else None,
        gpus={role: getattr(status.gpus, role) for role in _ROLES},
        demand=_demand(job),
        queue=(job["metadata"].get("labels") or {}).get(_QUEUE_LABEL, ""),
        waits_for="" if view.is_finished else _waits_for(view),
        failure=verdict(view) if view.phase is Phase.FAILED else "",
        alarms=tuple(alarm.reason for alarm in runtime.alarms),
    )


def _demand(job: Json) -> int:
    try:
        spec = RLJobSpec.model_validate(job["spec"], extra="ignore")
    except (ValidationError, KeyError):
        return 0  # The operator says what is wrong with it.
    pods = [spec.workers, *([spec.trainer_workers] if spec.trainer_workers is not None else [])]
    return sum(one.replicas * one.gpus_per_pod for one in pods)


def _waits_for(view: JobView) -> str:
    held = [one for one in problems(view) if one.type in _HOLD_UP]
    return "; ".join(f"{one.reason}: {one.message}" if one.message else one.reason for one in held[:1])
