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
    outcome = Outcome(status=RLJobStatus(sharing=turns), conditions={ConditionType.SHARING: _fact(context, found)})
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
    return Fact(True, SharingReason.MEMBER, f"{message}{waits}")


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
