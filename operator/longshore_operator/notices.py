"""Notices of the coordinator, which become events, and its alarms, which become a condition."""

from longshore.api.reasons import NoticeReason, TrainingAlarmReason
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import FINISHED_PHASES, ConditionType, Phase, RLJobStatus
from longshore_operator.context import Context
from longshore_operator.plan import Event, Fact, Outcome


def reconcile_notices(context: Context) -> Outcome:
    """Decide events for new notices and alarms, and the condition TrainingAlarm."""
    status = context.job.status
    events = notice_events(status, context.observed.reported_notice)
    return Outcome(events=events, conditions={ConditionType.TRAINING_ALARM: _alarm(status)})


def notice_events(status: RLJobStatus, reported: tuple[int, int]) -> tuple[Event, ...]:
    """Return events of the notices of the current attempt after the newest `reported` one, given by attempt and number.

    A job that is suspended or has ended loses its engines because its pods are stopped, which is no news.
    """
    runtime = status.runtime
    if (
        runtime is None
        or runtime.attempt != status.attempt
        or status.phase in {Phase.SUSPENDED, Phase.QUEUED, *FINISHED_PHASES}
    ):
        return ()
    return tuple(
        Event(_kind(notice.reason), notice.reason, notice.message, key=f"{runtime.attempt}-{notice.number}")
        for notice in runtime.notices
        if (runtime.attempt, notice.number) > reported
    )


def _kind(reason: str) -> str:
    return "Normal" if reason == NoticeReason.FACTORS_CHANGED else "Warning"


def newest_notice(runtime: RuntimeStatus | None) -> tuple[int, int]:
    """Return attempt and number of the newest notice; (0, 0) if there is none."""
    numbers = [notice.number for notice in runtime.notices] if runtime is not None else []
    return (runtime.attempt, max(numbers)) if runtime is not None and numbers else (0, 0)


def _alarm(status: RLJobStatus) -> Fact | None:
    """Return the condition about alarms, which stays after the job's end; None if there was never an alarm."""
    alarms = status.runtime.alarms if status.runtime is not None else []
    if alarms:
        message = "; ".join(f"since step {alarm.step}: {alarm.message}" for alarm in alarms)
        return Fact(True, alarms[0].reason, message)
    if status.condition(ConditionType.TRAINING_ALARM) is not None:
        return Fact(False, TrainingAlarmReason.CLEARED, "nothing speaks against the training any longer")
    return None
