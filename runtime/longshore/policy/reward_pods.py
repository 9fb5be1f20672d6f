"""How many reward pods a job has, by how long responses wait for a worker and how many do.

RollPacker (section 4.3) hides rewards behind the rollout; that needs workers enough. More pods are asked for as soon as
responses wait, and given back one by one when they have long been idle: a pod that is missed costs a round more than an
idle one does.
"""

from dataclasses import dataclass
from typing import Final

MAX_WAIT_S: Final = 5.0
"""A response that its group waits for may wait so long for a worker."""
MAX_QUEUE_PER_WORKER: Final = 4
"""So many responses per worker may wait: the rollout is still ahead, and what waits early will be waited for."""
GROW_PAUSE_S: Final = 15.0
"""Between two growths: the new workers need time to show."""
CALM_S: Final = 120.0
"""Workers that are idle for so long go, one pod at a time. Longer than most training phases, in which all are idle."""
MAX_CALM_LOAD: Final = 0.75
"""What is left after a pod goes must be enough for the load, with so much of it busy."""


@dataclass(frozen=True)
class RewardPressure:
    """How the workers of the reward pods keep up."""

    queue_length: int
    """Responses that wait for a worker, whether their group waits for them or not."""
    oldest_wait_s: float
    """Longest wait of a response that its group waits for."""
    num_workers: int
    """Workers that are there."""
    num_busy: int
    """Workers that score a response."""


@dataclass(frozen=True)
class RewardPodLimits:
    """Limits of the number of reward pods that the user sets."""

    minimum: int
    maximum: int
    workers_per_pod: int
    """Those whose pressure is reported."""


@dataclass(frozen=True)
class RewardPods:
    """Number of reward pods, and what has to be remembered to change it."""

    count: int
    changed_s: float | None = None
    """Time of the last change, in seconds."""
    calm_since_s: float | None = None
    """Time since which fewer would be enough without a break, in seconds."""
    reason: str = ""
    """Why it changes, if it does."""


def desired_pods(
    current: RewardPods, limits: RewardPodLimits, pressure: RewardPressure | None, now_s: float
) -> RewardPods:
    """Return what should be from `now_s` on. The same input gives the same answer, and the answer is a fixed point.

    `pressure` is None while nobody tells: then nothing changes, except that the limits hold.
    """
    if limits.minimum == limits.maximum:
        return RewardPods(limits.minimum)
    count = min(max(current.count, limits.minimum), limits.maximum)
    if count != current.count:
        current = RewardPods(count, now_s)
    unchanged = RewardPods(count, current.changed_s)
    if pressure is None:
        return unchanged
    if _is_pressed(pressure):
        return _grown(current, limits, pressure, now_s) or unchanged
    if count == limits.minimum or not _is_calm(limits, pressure):
        return unchanged
    calm_since_s = now_s if current.calm_since_s is None else current.calm_since_s
    if now_s - calm_since_s < CALM_S:
        return RewardPods(count, current.changed_s, calm_since_s)
    reason = f"{pressure.num_workers} workers have had little to do for {CALM_S:.0f} s"
    return RewardPods(count - 1, now_s, now_s if count - 1 > limits.minimum else None, reason)


def next_look_s(current: RewardPods, limits: RewardPodLimits, pressure: RewardPressure | None) -> float | None:
    """Return when `desired_pods` may answer differently although nothing else changes; `current` is its last answer."""
    if pressure is None:
        return None
    if current.calm_since_s is not None:
        return current.calm_since_s + CALM_S
    if _is_pressed(pressure) and current.count < limits.maximum and current.changed_s is not None:
        return current.changed_s + GROW_PAUSE_S
    return None


def is_news(before: RewardPressure | None, after: RewardPressure) -> bool:
    """Return whether a pressure differs from the one that was reported last by so much that it is worth a report."""
    if before is None or before.num_workers != after.num_workers:
        return True
    return (
        _moved(before.queue_length, after.queue_length)
        or _moved(before.oldest_wait_s, after.oldest_wait_s)
        or _moved(before.num_busy, after.num_busy)
    )


def _is_pressed(pressure: RewardPressure) -> bool:
    """Return whether responses wait for want of workers.

    Where some are idle, `maxConcurrency` holds the others back.
    """
    if pressure.num_workers == 0 or pressure.num_busy < pressure.num_workers:
        return False
    return pressure.oldest_wait_s > MAX_WAIT_S or pressure.queue_length >= MAX_QUEUE_PER_WORKER * pressure.num_workers


def _is_calm(limits: RewardPodLimits, pressure: RewardPressure) -> bool:
    num_left = pressure.num_workers - limits.workers_per_pod
    return pressure.queue_length + pressure.num_busy <= MAX_CALM_LOAD * num_left


def _grown(current: RewardPods, limits: RewardPodLimits, pressure: RewardPressure, now_s: float) -> RewardPods | None:
    """Return pods with a worker for all that wait, at most twice the pods.

    None while those asked for are not there yet.
    """
    is_awaited = pressure.num_workers < current.count * limits.workers_per_pod
    pauses = current.changed_s is not None and now_s - current.changed_s < GROW_PAUSE_S
    if is_awaited or pauses or current.count >= limits.maximum:
        return None
    num_more = max(1, -(-pressure.queue_length // limits.workers_per_pod))
    if pressure.oldest_wait_s > MAX_WAIT_S:
        reason = f"a response has waited {pressure.oldest_wait_s:.0f} s for a worker"
    else:
        reason = f"{pressure.queue_length} responses wait for {pressure.num_workers} workers"
    count = min(current.count + num_more, max(1, 2 * current.count), limits.maximum)
    return RewardPods(count, now_s, reason=reason)


def _moved(before: float, after: float) -> bool:
    """Return whether a number moved by a quarter, or from or to nothing."""
    low, high = sorted((before, after))
    return 1.25 * low < high
