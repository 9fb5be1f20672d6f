"""Reward pods: their addresses, and their number by the coordinator's reports and the policy's memory."""

from datetime import UTC, datetime

from longshore.api.names import Component
from longshore.api.reasons import EventReason
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import RewardPodCounts, RLJobStatus
from longshore.policy.reward_pods import RewardPodLimits, RewardPods, RewardPressure, desired_pods, next_look_s
from longshore_kube.times import parse_time, rfc3339
from longshore_operator.context import Context
from longshore_operator.kueue.kueue_admission import WINDOW, next_peak
from longshore_operator.plan import Event, Outcome, next_of


def reconcile_rewards(context: Context) -> Outcome:
    """Decide the number of reward pods between `reward.pods` and `reward.maxPods`; none without an active job."""
    addresses = context.addresses(Component.REWARD, context.job.spec.reward.most_pods)
    seen = {"ready": context.num_ready(Component.REWARD), "addresses": addresses}
    if not context.progress.active:
        return Outcome(status=RLJobStatus(rewards=RewardPodCounts().model_copy(update=seen)))
    before, now = context.job.status.rewards, context.now
    reward, pressure = context.job.spec.reward, _pressure(context.runtime)
    admission, runtime = context.observed.admission, context.runtime
    left = admission.num_reward_pods if admission is not None else None
    most = reward.most_pods if left is None else min(reward.most_pods, left)
    limits = RewardPodLimits(reward.pods, max(most, reward.pods), reward.sized_per_pod)
    after = desired_pods(_pods(before), limits, pressure, now.timestamp())
    counts = RewardPodCounts(
        desired=after.count, changed_time=_time(after.changed_s), calm_since=_time(after.calm_since_s)
    )
    if left is not None:
        step = runtime.step if runtime is not None else None
        counts = counts.model_copy(update=next_peak(before, after.count, left, step, now))
    look_s = next_look_s(_pods(counts), limits, pressure)
    window_ends = parse_time(counts.peak_since) + WINDOW if counts.peak_since is not None else None
    return Outcome(
        events=_events(before, counts, after.reason),
        status=RLJobStatus(rewards=counts.model_copy(update=seen)),
        requeue_at=next_of(now, None if look_s is None else datetime.fromtimestamp(look_s, UTC), window_ends),
    )


def _pressure(runtime: RuntimeStatus | None) -> RewardPressure | None:
    """Return the coordinator's last report."""
    if runtime is None or runtime.rewards is None:
        return None
    load = runtime.rewards
    return RewardPressure(load.queue_length, load.oldest_wait_s, load.workers, load.busy)


def _pods(counts: RewardPodCounts) -> RewardPods:
    return RewardPods(counts.desired, _seconds(counts.changed_time), _seconds(counts.calm_since))


def _events(before: RewardPodCounts, after: RewardPodCounts, why: str) -> tuple[Event, ...]:
    if not why:
        return ()
    message = f"reward pods from {before.desired} to {after.desired}: {why}"
    key = f"rewards-{after.desired}-{after.changed_time}"
    return (Event("Normal", EventReason.REWARD_PODS_RESIZED, message, key),)


def _seconds(time: str | None) -> float | None:
    return None if time is None else parse_time(time).timestamp()


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(datetime.fromtimestamp(seconds, UTC))
