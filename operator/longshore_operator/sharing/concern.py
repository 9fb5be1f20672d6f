"""What a job's status says of its sharing group, and the end of a turn that is not returned."""

from typing import Final

from longshore.api.names import Component
from longshore.api.reasons import SharingReason
from longshore.api.sharing import SharingStatus
from longshore.api.status import ConditionType, RLJobStatus
from longshore_kube.times import rfc3339
from longshore_operator.context import Context
from longshore_operator.outcome import Fact, Outcome
from longshore_operator.plan import DeletePod, Event
from longshore_operator.sharing.membership import NUM_TRIAL_STEPS
from longshore_operator.sharing.view import SharingView

KUEUE_REFUSAL: Final = (
    "spec.sharing: jobs in a queue of Kueue cannot share GPUs, since Kueue starts and stops them: remove the label of "
    "the queue or sharing"
)


def reconcile_sharing(context: Context) -> Outcome:
    """The turns of the job, the condition Sharing, and an end of its attempt if a turn is overdue."""
    found = context.observed.sharing
    turns = _turns(context, found)
    if found is None or context.progress.finished:
        return Outcome(status=RLJobStatus(sharing=turns), conditions={ConditionType.SHARING: None})
    fact = _fact(context, found)
    outcome = Outcome(
        events=_slowed_down(context, fact),
        status=RLJobStatus(sharing=turns),
        conditions={ConditionType.SHARING: fact},
    )
    if found.overdue_at is None or turns is None:
        return outcome
    if found.overdue_at > context.now:
        return outcome.joined(Outcome(requeue_at=found.overdue_at))
    return outcome.joined(_overdue(context, found))


def _turns(context: Context, found: SharingView | None) -> SharingStatus | None:
    """Return the turns of the attempt; a coordinator that lost them for a moment would wait for ever."""
    if found is None or found.turns is None or found.turns.attempt != context.progress.attempt:
        return None
    return found.turns if context.progress.active else None


def _fact(context: Context, found: SharingView) -> Fact | None:
    if found.refusal or found.mistake:
        return Fact(False, SharingReason.REFUSED, found.refusal or found.mistake)
    if not context.progress.active:
        return None
    message = f"the job takes turns in sharing group {found.group}"
    waits = f"; {found.waits_for}" if found.waits_for else ""
    if found.turns is None or found.is_on_trial:
        return Fact(True, SharingReason.ON_TRIAL, f"{message} while its first steps are measured{waits}")
    if _is_too_slow(context):
        # No figures: every step has others, and each would be a write. They are in status.runtime.sharing.
        return Fact(
            True,
            SharingReason.TOO_SLOW,
            "a mean step of the job takes longer than its sharing.maxSlowdown allows, because members of sharing "
            f"group {found.group} need the GPUs for longer than in their first steps: raise it, or choose another "
            f"sharing.group for one of them{waits}",
        )
    return Fact(True, SharingReason.MEMBER, f"{message}{waits}")


def _is_too_slow(context: Context) -> bool:
    """Whether the steps of this attempt were slowed down by more than the job allows, once enough were measured."""
    sharing, report = context.job.spec.sharing, context.runtime.sharing if context.runtime is not None else None
    if sharing is None or report is None or report.num_steps < NUM_TRIAL_STEPS:
        return False
    return report.slowdown > sharing.max_slowdown


def _slowed_down(context: Context, fact: Fact | None) -> tuple[Event, ...]:
    """Post an event when the job has become slower than it allows."""
    before = context.job.status.condition(ConditionType.SHARING)
    if fact is None or fact.reason != SharingReason.TOO_SLOW or (before is not None and before.reason == fact.reason):
        return ()
    return (Event("Warning", fact.reason, fact.message, f"slow-{context.progress.attempt}"),)


def _overdue(context: Context, found: SharingView) -> Outcome:
    """End the attempt by its coordinator: its other pods follow, and the turn is free when all are gone."""
    coordinators = [pod for pod in context.pods if pod.component is Component.COORDINATOR]
    if not coordinators or found.overdue_at is None:
        return Outcome()
    message = (
        f"another job of sharing group {found.group} waits, and the GPUs were not returned by "
        f"{rfc3339(found.overdue_at)}: the attempt ends"
    )
    return Outcome(
        actions=tuple(DeletePod(pod.name, pod.uid) for pod in coordinators),
        events=tuple(Event("Warning", SharingReason.OVERDUE, message, f"overdue-{pod.uid}") for pod in coordinators),
    )
