"""Reward pods that a job has not wanted for long: Kueue may give their quota to other jobs.

Within an admission, Kueue gives no such quota back. So the job never has more pods than are left until it is admitted
again, and only pods that were wanted at no time of a long window are given up.
"""

from datetime import datetime, timedelta
from typing import Any, Final

from longshore.api.names import Component
from longshore.api.status import RewardPodCounts
from longshore_kube.times import parse_time, rfc3339
from longshore_operator.kueue.view import KueueView, Object
from longshore_operator.observed import PodView

WINDOW: Final = timedelta(hours=1)
NUM_STEPS: Final = 3
"""A window has so many steps at least: most pods are wanted in a part of each only."""


def num_left(view: KueueView) -> int | None:
    """Return for how many reward pods there is quota; None: the job is not admitted, or has none."""
    assignments = (view.status.get("admission") or {}).get("podSetAssignments") or ()
    count = next((one.get("count") for one in assignments if one["name"] == Component.REWARD.value), None)
    return None if count is None else count - _reclaimed(view)


def next_peak(before: RewardPodCounts, wanted: int, left: int, step: int | None, now: datetime) -> dict[str, Any]:
    """Return the fields of the window: a new one begins when one that is over has left no pod without use.

    `step`: the newest that the coordinator reports; None: it does not report yet.
    """
    peak = max(before.peak, wanted)
    goes_on = before.peak_since is not None and (peak < left or not is_over(before, step, now))
    if goes_on or step is None:
        return {"peak": peak, "peak_since": before.peak_since, "peak_step": before.peak_step}
    return {"peak": wanted, "peak_since": rfc3339(now), "peak_step": step}


def is_over(window: RewardPodCounts, step: int | None, now: datetime) -> bool:
    """Whether a window has lasted long enough."""
    if window.peak_since is None or step is None or step < window.peak_step + NUM_STEPS:
        return False
    return parse_time(window.peak_since) + WINDOW <= now


def reclaimable(
    view: KueueView, window: RewardPodCounts, step: int | None, pods: tuple[PodView, ...], now: datetime
) -> list[Object] | None:
    """Return the new `reclaimablePods` of the Workload; None: it has no more of them than before."""
    left, name = num_left(view), Component.REWARD.value
    if left is None or window.peak >= left or not is_over(window, step, now):
        return None
    if any(pod.component is Component.REWARD and pod.index >= window.peak and pod.holds_resources for pod in pods):
        return None
    others = [one for one in view.status.get("reclaimablePods") or () if one["name"] != name]
    return [*others, {"name": name, "count": _reclaimed(view) + left - window.peak}]


def _reclaimed(view: KueueView) -> int:
    found = view.status.get("reclaimablePods") or ()
    return next((int(one["count"]) for one in found if one["name"] == Component.REWARD.value), 0)
