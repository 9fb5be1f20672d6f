"""Reward pods: their number, from what the coordinator tells and the policy remembers, and their addresses."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from longshore.api.names import Component
from longshore.api.reward import Reward
from longshore.api.rljob import RLJob
from longshore.api.status import RewardPodCounts
from longshore.policy.reward_pods import RewardPodLimits, RewardPods, RewardPressure, desired_pods, next_look_s
from longshore_operator.clock import parse, timestamp
from longshore_operator.lifecycle import Progress
from longshore_operator.observed import PodView
from longshore_operator.plan import Event


@dataclass(frozen=True, slots=True)
class RewardSizing:
    """How many reward pods there should be from now on."""

    counts: RewardPodCounts
    """For the status, without those that are ready."""
    events: tuple[Event, ...] = ()
    wake_at: datetime | None = None
    """When that may change by itself."""


def size_rewards(job: RLJob, progress: Progress, now: datetime) -> RewardSizing:
    """Between `reward.pods` and `reward.maxPods`; none for a job that has ended or is suspended."""
    if progress.finished or progress.suspended:
        return RewardSizing(RewardPodCounts())
    before = job.status.rewards
    limits, pressure = _limits(job.spec.reward), _pressure(job, progress)
    after = desired_pods(_pods(before), limits, pressure, now.timestamp())
    counts = RewardPodCounts(
        desired=after.count, changed_time=_time(after.changed_s), calm_since=_time(after.calm_since_s)
    )
    look_s = next_look_s(_pods(counts), limits, pressure)
    wake_at = None if look_s is None else datetime.fromtimestamp(look_s, UTC)
    return RewardSizing(counts, _events(before, counts, after.reason), wake_at)


def addresses(pods: Sequence[PodView]) -> list[str]:
    """Of the reward pods among these, by index; empty where there is none."""
    known = {pod.index: pod.ip for pod in pods if pod.component is Component.REWARD and pod.ip and not pod.terminal}
    return [known.get(index, "") for index in range(max(known, default=-1) + 1)]


def _limits(reward: Reward) -> RewardPodLimits:
    return RewardPodLimits(reward.pods, reward.most_pods, reward.workers_per_pod)


def _pressure(job: RLJob, progress: Progress) -> RewardPressure | None:
    """What the coordinator of this attempt told last."""
    runtime = job.status.runtime
    if runtime is None or runtime.rewards is None or runtime.attempt != progress.attempt:
        return None
    load = runtime.rewards
    return RewardPressure(load.queue_length, load.oldest_wait_s, load.workers, load.busy)


def _pods(counts: RewardPodCounts) -> RewardPods:
    return RewardPods(counts.desired, _seconds(counts.changed_time), _seconds(counts.calm_since))


def _events(before: RewardPodCounts, after: RewardPodCounts, why: str) -> tuple[Event, ...]:
    if not why:
        return ()
    message = f"reward pods from {before.desired} to {after.desired}: {why}"
    return (Event("Normal", "RewardPodsResized", message, key=f"rewards-{after.desired}-{after.changed_time}"),)


def _seconds(time: str | None) -> float | None:
    return None if time is None else parse(time).timestamp()


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else timestamp(datetime.fromtimestamp(seconds, UTC))
