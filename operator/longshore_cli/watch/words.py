"""What a job does now, in words."""

from collections.abc import Mapping
from typing import Final

from longshore.api.runtime_status import ChosenFactors, Progress, ProgressUnit, RuntimeActivity
from longshore.api.status import Phase
from longshore_cli import format as fmt
from longshore_client.view import JobView

_WORDS: Final[Mapping[str, str]] = {
    Phase.PENDING: "waiting for pods",
    Phase.STARTING: "start of the pods",
    RuntimeActivity.WAIT_FOR_WORKERS: "waiting for workers",
    RuntimeActivity.DOWNLOAD: "download from the Hub",
    RuntimeActivity.PREPARE_MODEL: "model and warm start",
    RuntimeActivity.WAIT_FOR_REWARD_PODS: "waiting for reward pods",
    RuntimeActivity.WAIT_FOR_ENVIRONMENT_PODS: "waiting for environment pods",
    RuntimeActivity.START_ENGINES: "start of the engines",
    RuntimeActivity.RESTORE: "restore of the checkpoint",
    RuntimeActivity.PROFILE_ENGINES: "measuring the engines",
    RuntimeActivity.PROFILE_TRAINERS: "measuring the trainers",
    RuntimeActivity.PROFILE_SIZES: "measuring other tensor-parallel sizes",
    RuntimeActivity.PROFILE_JUDGES: "measuring the judges",
    RuntimeActivity.EVALUATE: "evaluation",
    RuntimeActivity.ROLLOUT: "rollout",
    RuntimeActivity.TRAIN: "training",
    RuntimeActivity.PUBLISH: "weights to the engines",
    RuntimeActivity.CHECKPOINT: "checkpoint",
    RuntimeActivity.DONE: "end of the pods",
    RuntimeActivity.FAILING: "end of the pods",
    Phase.RESTARTING: "restart",
    Phase.QUEUED: "admission",
    Phase.SUSPENDED: "suspension",
}
IN_EVERY_ROUND: Final = frozenset({RuntimeActivity.ROLLOUT, RuntimeActivity.TRAIN, RuntimeActivity.PUBLISH})
PREPARATIONS: Final = frozenset(
    {
        RuntimeActivity.WAIT_FOR_WORKERS,
        RuntimeActivity.DOWNLOAD,
        RuntimeActivity.PREPARE_MODEL,
        RuntimeActivity.WAIT_FOR_REWARD_PODS,
        RuntimeActivity.WAIT_FOR_ENVIRONMENT_PODS,
        RuntimeActivity.START_ENGINES,
        RuntimeActivity.RESTORE,
    }
)
"""A coordinator that does these has not read its checkpoint yet, so it reports zeros."""
_WITHOUT_COORDINATOR: Final = frozenset({Phase.QUEUED, Phase.PENDING, Phase.RESTARTING, Phase.SUSPENDED})


def activity(view: JobView) -> str:
    """Return the coordinator's word for what it does; the phase while no coordinator runs."""
    if view.phase in _WITHOUT_COORDINATOR or view.is_finished:
        return str(view.phase)
    return str(view.runtime.activity or view.phase)


def in_words(activity_name: str) -> str:
    """Return an activity in words for people; one without special words stays unchanged."""
    return _WORDS.get(activity_name, activity_name)


def factors(chosen: ChosenFactors) -> str:
    """Return the factors as `promptFactor 1.5, Pipelined since step 12: ...`, without what is as usual."""
    parts = [
        f"promptFactor {chosen.prompt_factor:g}",
        f"responseFactor {chosen.response_factor:g}" if chosen.response_factor > 1 else "",
        chosen.handover or "",
        f"frontierWidth {chosen.frontier_width}" if chosen.frontier_width is not None else "",
    ]
    since = f" since step {chosen.since_step}" if chosen.since_step else ""
    return f"{', '.join(filter(None, parts))}{since}: {chosen.why}"


def amount(progress: Progress) -> str:
    """Return `800.0 MB of 3.2 GB` or `120 of 300 steps`; without the whole where it is not known."""
    if progress.unit is ProgressUnit.BYTES:
        done, total = fmt.size(progress.done), fmt.size(progress.total)
        return f"{done} of {total}" if progress.total else done
    unit = progress.unit.lower()
    return f"{progress.done:,} of {progress.total:,} {unit}" if progress.total else f"{progress.done:,} {unit}"
