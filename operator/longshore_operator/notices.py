"""What went wrong and did not end an attempt: the coordinator's notices become events."""

from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import FINISHED_PHASES, Phase, RLJobStatus
from longshore_operator.plan import Event


def notice_events(status: RLJobStatus, told: tuple[int, int]) -> tuple[Event, ...]:
    """Notices of the current attempt after the newest that was `told`, given by its attempt and number.

    A job that is suspended or has ended loses its engines because its pods are stopped, which is no news.
    """
    runtime = status.runtime
    if runtime is None or runtime.attempt != status.attempt or status.phase in {Phase.SUSPENDED, *FINISHED_PHASES}:
        return ()
    return tuple(
        Event("Warning", notice.reason, notice.message, key=f"{runtime.attempt}-{notice.number}")
        for notice in runtime.notices
        if (runtime.attempt, notice.number) > told
    )


def newest_notice(runtime: RuntimeStatus | None) -> tuple[int, int]:
    """Attempt and number of the newest notice; (0, 0) where there is none."""
    numbers = [notice.number for notice in runtime.notices] if runtime is not None else []
    return (runtime.attempt, max(numbers)) if runtime is not None and numbers else (0, 0)
