"""Merge lanes by GPU: if an engine and a trainer share it, the lane shows the one that is active. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from longshore.record.lanes import Span, flattened
from longshore.record.model import Interval, Lane, LaneKind, LaneState, RoundRecord

_FROM_BACKGROUND_TO_FRONT: Final = (
    LaneState.ASLEEP,
    LaneState.IDLE,
    LaneState.LOST,
    LaneState.REGROUPING,
    LaneState.PUBLISHING,
    LaneState.REPURPOSING,
    LaneState.TRAINING,
    LaneState.SAMPLING,
)
"""Where engine and trainer do different things, the later one is shown."""


@dataclass(frozen=True)
class GpuLane:
    """GPUs that belong to an engine, a trainer replica, or both."""

    name: str
    pods: tuple[int, ...]
    gpus: tuple[int, ...]
    """GPUs in each of these pods."""
    lanes: tuple[Lane, ...]
    spans: tuple[Span, ...]
    """They cover the step without overlap; seconds since it began."""


def gpu_lanes(record: RoundRecord) -> list[GpuLane]:
    """Return the lanes of all GPUs, ordered by component, pod and GPU."""
    of_lane: dict[int, list[Interval]] = {lane.lane: [] for lane in record.lanes}
    for interval in record.intervals:
        of_lane[interval.lane].append(interval)
    return [
        _merged(lanes, [interval for lane in lanes for interval in of_lane[lane.lane]], record.duration_s)
        for lanes in _sharing(record.lanes)
    ]


def _sharing(lanes: Sequence[Lane]) -> list[list[Lane]]:
    """Return each engine with the replicas on its GPUs, then the replicas that share no GPU with an engine.

    If no GPUs are known, engines and replicas of a pod are paired in their order.
    """
    groups: list[list[Lane]] = []
    ordinals: dict[int, int] = {}
    for place, lane in enumerate(lanes):
        alike = [one for one in lanes[:place] if (one.component, one.pods, one.kind) == _key(lane)]
        ordinals[lane.lane] = len(alike)
    for lane in lanes:
        homes = [group for group in groups if _share(group[0], lane, ordinals)]
        for home in homes:
            home.append(lane)
        if not homes:
            groups.append([lane])
    return groups


def _key(lane: Lane) -> tuple[object, tuple[int, ...], LaneKind]:
    return lane.component, lane.pods, lane.kind


def _share(one: Lane, other: Lane, ordinals: dict[int, int]) -> bool:
    if one.component != other.component or set(one.pods).isdisjoint(other.pods):
        return False
    if one.gpus or other.gpus:
        return not set(one.gpus).isdisjoint(other.gpus)
    return one.pods != other.pods or ordinals[one.lane] == ordinals[other.lane]


def _merged(lanes: Sequence[Lane], intervals: Iterable[Interval], duration_s: float) -> GpuLane:
    layers: list[Span] = [(LaneState.IDLE, 0.0, duration_s)]
    ordered = sorted(intervals, key=lambda interval: _FROM_BACKGROUND_TO_FRONT.index(interval.state))
    layers += [(interval.state, interval.start_s, interval.end_s) for interval in ordered]
    return GpuLane(
        name=_name(lanes, lanes[0].gpus),
        pods=lanes[0].pods,
        gpus=lanes[0].gpus,
        lanes=tuple(lanes),
        spans=tuple(flattened(layers, 0.0, duration_s)),
    )


def _name(lanes: Sequence[Lane], gpus: Sequence[int]) -> str:
    first, last = lanes[0].pods[0], lanes[0].pods[-1]
    pod = f"{lanes[0].component.value} {first}" + (f" to {last}" if last > first else "")
    if gpus:
        return f"{pod}, GPU {gpus[0]}" if len(gpus) == 1 else f"{pod}, GPUs {gpus[0]} to {gpus[-1]}"
    return f"{pod}, {' and '.join(f'{lane.kind.value} {lane.number}' for lane in lanes)}"
