"""Fields of RLJob.status.runtime that follow from the state of a run. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from longshore.api.limits import MAX_MESSAGE_CHARACTERS
from longshore.api.round_status import RolloutLoad, RoundKind
from longshore.api.runtime_status import (
    ENDING_ACTIVITIES,
    Alarm,
    DrawCounts,
    HeldOutReward,
    KindCount,
    RuntimeStatus,
)
from longshore.policy.training_alarms import AlarmState, RaisedAlarm
from longshore_runtime.checkpoints.run_state import KindTotals, RunState
from longshore_runtime.checkpoints.store import Checkpoint

_FIGURES: Final = frozenset(
    (
        "activity", "activity_s", "progress", "round", "recent_rounds", "step", "reward", "held_out", "response_tokens",
        "tokens_per_s", "step_s", "bubble_share", "draws", "short", "long", "full", "checkpoint_step", "warm_start",
    )
)  # fmt: skip
"""Fields that change with every step and by which the operator decides nothing, but for the load of a round."""

_OF_THE_ATTEMPT: Final = ("notices", "activity_s")


def is_urgent(before: RuntimeStatus | None, after: RuntimeStatus) -> bool:
    """Return whether the operator is to know of a change at once."""
    if before is None or after.activity in ENDING_ACTIVITIES or _load(after) not in (None, _load(before)):
        return True
    others = RuntimeStatus.model_fields.keys() - _FIGURES
    return any(getattr(before, field) != getattr(after, field) for field in others)


def _load(status: RuntimeStatus) -> RolloutLoad | None:
    return status.round.load if status.round is not None else None


def next_session(first: RuntimeStatus, last: RuntimeStatus) -> RuntimeStatus:
    """Return `first` with what an attempt goes on counting: `last` was reported last, by the session before."""
    return first.model_copy(update={field: getattr(last, field) for field in _OF_THE_ATTEMPT})


def resumed_status(first: RuntimeStatus, checkpoint: Checkpoint | None) -> RuntimeStatus:
    """Return the first report of an attempt, which shows the progress of the newest checkpoint."""
    if checkpoint is None:
        return first
    exported = checkpoint.state()
    state = RunState.load(exported["run"], {})
    alarms = reported_alarms(AlarmState.load(exported["alarms"]).raised)
    fields = {**state_fields(state, state.policy, first.steps), "alarms": alarms, "checkpoint_step": checkpoint.step}
    return first.model_copy(update=fields)


def state_fields(state: RunState, policy: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Return the fields that a state determines; without the state of its round `policy`, the draws are left out.

    `steps`: number of steps as it was reported last.
    """
    fields: dict[str, Any] = {
        "step": state.step,
        "steps": max(steps, state.step),
        "short": _kind_count(state.kinds.get(RoundKind.SHORT, KindTotals())),
        "long": _kind_count(state.kinds.get(RoundKind.LONG, KindTotals())),
        "full": _kind_count(state.kinds.get(RoundKind.FULL, KindTotals())),
        "held_out": held_out_reward(state),
    }
    if policy:
        fields["draws"] = draw_counts(state, len(policy["leftovers"]))
    return fields


def draw_counts(state: RunState, queue_length: int) -> DrawCounts:
    """Return the outcomes of the draws so far; `queue_length` draws are deferred."""
    return DrawCounts(
        trained=state.trained, zero_variance=state.zero_variance, rejected=state.rejected, deferred=queue_length
    )


def held_out_reward(state: RunState) -> HeldOutReward:
    """Return the first and the newest held-out reward."""
    before, latest = state.held_out_before, state.held_out_latest
    return HeldOutReward(
        before=before and _rounded(before.overall),
        latest=latest and _rounded(latest.overall),
        long_before=before and _rounded(before.longest_quartile),
        long_latest=latest and _rounded(latest.longest_quartile),
    )


def _rounded(reward: float | None) -> float | None:
    return None if reward is None else round(reward, 4)


def reported_alarms(raised: Sequence[RaisedAlarm]) -> list[Alarm]:
    """Return alarms as the status lists them."""
    return [
        Alarm(reason=alarm.reason.value, message=alarm.message[:MAX_MESSAGE_CHARACTERS], step=alarm.step)
        for alarm in raised
    ]


def _kind_count(totals: KindTotals) -> KindCount:
    return KindCount(
        rounds=totals.rounds,
        rollout_s=round(totals.rollout_s, 3),
        samples=totals.samples,
        preemptions=totals.preemptions,
    )
