"""What is shown of many jobs: pure functions from RLJobs to rows of text."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from textwrap import shorten
from typing import Final

from longshore.api.status import ConditionStatus, ConditionType, Phase
from longshore_cli import format as fmt
from longshore_client.view import JobView, job_view, steps_text, verdict
from longshore_kube.resources import Json

Row = tuple[str, ...]

NOTHING: Final = "–"
JOB_HEADER: Final = (
    "NAMESPACE", "JOB", "PHASE", "QUEUE", "STEP", "STEPS/H", "TOKENS/S", "ROLLOUT", "TRAINER", "JUDGE", "IDLE", "WHY",
)  # fmt: skip
NAMESPACE_HEADER: Final = ("NAMESPACE", "RUNNING", "QUEUED", "OTHER", "ROLLOUT", "TRAINER", "JUDGE", "IDLE")
QUEUE_HEADER: Final = ("PLACE", "NAMESPACE", "JOB", "QUEUE", "GPUS", "WAITS", "WHY")
_ORDER: Final = (
    Phase.RUNNING, Phase.STARTING, Phase.RESTARTING, Phase.PENDING, Phase.QUEUED, Phase.SUSPENDED, Phase.FAILED,
    Phase.SUCCEEDED,
)  # fmt: skip
"""Jobs that need GPUs first."""
_WHY_CHARACTERS: Final = 80
"""Length to which the reason of a failure is cut; `longshore watch` and the page of the job have all of it."""


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that waits for its admission."""

    namespace: str
    name: str
    queue: str
    """LocalQueue of Kueue; empty: that of the operator."""
    position: int
    """Place in the operator's queue, from 1; 0: not known."""
    gpus: str
    """GPUs that it needs; two numbers: the least and the most."""
    since: str
    why: str


def job_rows(jobs: Iterable[Json]) -> list[Row]:
    """Return one row for each job, running ones first."""
    views = sorted(map(job_view, jobs), key=lambda one: (_ORDER.index(one.phase), one.namespace, one.name))
    return [_job_row(view) for view in views]


def namespace_rows(jobs: Iterable[Json]) -> list[Row]:
    """Return one row for each namespace, and one for all of them."""
    by_namespace: dict[str, list[JobView]] = {}
    for view in map(job_view, jobs):
        if not view.is_finished:
            by_namespace.setdefault(view.namespace, []).append(view)
    every = [view for views in by_namespace.values() for view in views]
    return [
        *(_namespace_row(name, views) for name, views in sorted(by_namespace.items())),
        _namespace_row("all", every),
    ]


def queue_rows(jobs: Iterable[Json], now: datetime) -> list[Row]:
    """Return one row for each waiting job: the operator's queue in its order, then Kueue's queues, the oldest first."""
    waiting = [_waiting(job) for job in jobs if (job.get("status") or {}).get("phase") == Phase.QUEUED]
    waiting.sort(key=lambda one: (one.queue, not one.position, one.position, one.since, one.namespace, one.name))
    return [
        (
            str(one.position) if one.position else NOTHING,
            one.namespace,
            one.name,
            one.queue or NOTHING,
            one.gpus,
            fmt.duration(max(0.0, (now - datetime.fromisoformat(one.since)).total_seconds())),
            one.why,
        )
        for one in waiting
    ]


def aligned(header: Row, rows: Sequence[Row]) -> str:
    """Return columns as wide as their longest cell, the last one as it is."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header) - 1)]
    lines = ("  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]])
             for row in (header, *rows))  # fmt: skip
    return "\n".join(line.rstrip() for line in lines)


def _job_row(view: JobView) -> Row:
    runtime, gpus, admission = view.runtime, view.status.gpus, view.status.admission
    is_running = view.phase is Phase.RUNNING
    position = admission.position if admission is not None else 0
    return (
        view.namespace,
        view.name,
        view.phase.value,
        str(position) if view.phase is Phase.QUEUED and position else NOTHING,
        steps_text(runtime.step, view.steps),
        f"{3600 / runtime.step_s:,.1f}" if is_running and runtime.step_s else NOTHING,
        f"{runtime.tokens_per_s:,.0f}" if is_running and runtime.tokens_per_s else NOTHING,
        *(str(count) for count in (gpus.rollout, gpus.trainer, gpus.judge)),
        fmt.share(runtime.bubble_share) if is_running and runtime.step else NOTHING,
        shorten(verdict(view), _WHY_CHARACTERS, placeholder=" …") if view.phase is Phase.FAILED else NOTHING,
    )


def _namespace_row(name: str, views: list[JobView]) -> Row:
    phases = Counter(view.phase for view in views)
    num_running, num_queued = phases[Phase.RUNNING], phases[Phase.QUEUED]
    gpus = [(view.status.gpus.rollout, view.status.gpus.trainer, view.status.gpus.judge) for view in views]
    return (
        name,
        str(num_running),
        str(num_queued),
        str(len(views) - num_running - num_queued),
        *(str(sum(counts)) for counts in (zip(*gpus, strict=True) if gpus else ((), (), ()))),
        _idle(views),
    )


def _idle(views: Iterable[JobView]) -> str:
    """Return the mean share of the last rollouts in which engines idled, by GPUs; a pod without GPUs counts as one."""
    measured = [
        (max(1, view.status.gpus.rollout + view.status.gpus.trainer), view.runtime.bubble_share)
        for view in views
        if view.phase is Phase.RUNNING and view.runtime.step
    ]
    total = sum(weight for weight, _ in measured)
    return fmt.share(sum(weight * share for weight, share in measured) / total) if total else NOTHING


def _waiting(job: Json) -> WaitingJob:
    view, metadata = job_view(job), job["metadata"]
    admitted, admission = view.status.condition(ConditionType.ADMITTED), view.status.admission
    waits = admitted is not None and admitted.status is ConditionStatus.FALSE
    return WaitingJob(
        namespace=view.namespace,
        name=view.name,
        queue=admission.queue if admission is not None else "",
        position=admission.position if admission is not None else 0,
        gpus=_gpus(job.get("spec") or {}),
        since=admitted.last_transition_time if admitted and waits else metadata["creationTimestamp"],
        why=admitted.message if admitted and waits else "the operator has not processed it yet",
    )


def _gpus(spec: Json) -> str:
    """Return the GPUs of all pods that start together, and of all that an elastic job takes."""
    workers = spec.get("workers") or {}
    most, least = _num_gpus(spec), _num_gpus(spec | {"workers": workers | {"replicas": workers.get("minReplicas", 0)}})
    return f"{least}-{most}" if "minReplicas" in workers and least < most else str(most)


def _num_gpus(spec: Json) -> int:
    functions = (spec.get("reward") or {}).get("functions") or ()
    pools = [(one.get("judge") or {}).get("pool") for one in functions]
    pods = [spec.get("workers"), spec.get("trainerWorkers"), *pools]
    return sum(one.get("replicas", 1) * one.get("gpusPerPod", 0) for one in pods if one)
