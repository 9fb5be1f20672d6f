"""Convert records of rounds to what the page draws."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from longshore.page.view import Lengths, PageInterval, PageLane, PageStay, RoundDigest, RoundView
from longshore.record.model import LaneKind, RecordOutcome, ResponseRow, RoundRecord, Stay, StayEnd
from longshore.record.timeline import GpuLane, gpu_lanes

MAX_STAYS: Final = 4000
"""In a timeline: a screen has no room for more."""
_DIGITS: Final = 4


def digest(record: RoundRecord) -> RoundDigest:
    """Summarize a round in one row."""
    ends = Counter(stay.end for stay in record.requests)
    outcomes = Counter(response.outcome for response in record.responses)
    accepted = [one.tokens for one in record.responses if one.outcome is RecordOutcome.ACCEPTED]
    others = [one.tokens for one in record.responses if one.outcome is not RecordOutcome.ACCEPTED]
    return RoundDigest(
        step=record.step,
        kind=record.kind,
        duration_s=record.duration_s,
        bubble_share=record.bubble_share,
        queue_length=record.queue_length,
        num_responses=len(record.responses),
        outcomes={outcome.value: outcomes[outcome] for outcome in RecordOutcome if outcomes[outcome]},
        num_moved=ends[StayEnd.MOVED],
        num_aborted=ends[StayEnd.ABORTED],
        accepted=lengths(accepted),
        others=lengths(others),
    )


def lengths(tokens: Iterable[int]) -> Lengths | None:
    """Return the distribution of response lengths, or None if there are no responses."""
    values = sorted(tokens)
    if not values:
        return None
    p10, p25, p50, p75, p90 = (_quantile(values, share) for share in (0.1, 0.25, 0.5, 0.75, 0.9))
    return Lengths(num=len(values), p10=p10, p25=p25, p50=p50, p75=p75, p90=p90, max=values[-1])


def round_view(record: RoundRecord, max_stays: int = MAX_STAYS) -> RoundView:
    """Return the timeline of a round."""
    rows = {one.response: one for one in record.responses}
    shown = heapq.nlargest(max_stays, record.requests, key=lambda stay: stay.end_s - stay.start_s)
    by_engine: dict[int, list[Stay]] = {}
    for stay in shown:
        by_engine.setdefault(stay.engine, []).append(stay)
    lanes = tuple(_lane(one, by_engine, rows) for one in gpu_lanes(record))
    seconds: defaultdict[str, float] = defaultdict(float)
    for lane in lanes:
        for interval in lane.intervals:
            seconds[interval.state] += interval.end_s - interval.start_s
    return RoundView(
        step=record.step,
        kind=record.kind,
        duration_s=record.duration_s,
        bubble_share=record.bubble_share,
        phases=tuple(
            PageInterval(state=phase.name.value, start_s=phase.start_s, end_s=phase.end_s) for phase in record.phases
        ),
        lanes=lanes,
        seconds={state: round(total_s, _DIGITS) for state, total_s in sorted(seconds.items())},
        num_stays=len(record.requests),
    )


def _lane(gpu: GpuLane, by_engine: dict[int, list[Stay]], responses: dict[str, ResponseRow]) -> PageLane:
    engines = [lane.number for lane in gpu.lanes if lane.kind is LaneKind.ENGINE]
    stays = sorted((stay for engine in engines for stay in by_engine.get(engine, ())), key=lambda stay: stay.start_s)
    rows = _rows(stays)
    return PageLane(
        label=gpu.name,
        intervals=tuple(
            PageInterval(state=state.value, start_s=round(start_s, _DIGITS), end_s=round(end_s, _DIGITS))
            for state, start_s, end_s in gpu.spans
        ),
        stays=tuple(
            PageStay(
                response=stay.response,
                row=row,
                start_s=round(stay.start_s, _DIGITS),
                end_s=round(stay.end_s, _DIGITS),
                tokens=stay.tokens,
                end=stay.end.value,
                outcome=responses[stay.response].outcome.value if stay.response in responses else RecordOutcome.UNUSED,
                reward=responses[stay.response].reward if stay.response in responses else None,
                environment_s=round(stay.environment_s, _DIGITS),
                environment_share=(
                    round(responses[stay.response].environment_share, _DIGITS) if stay.response in responses else 0.0
                ),
            )
            for stay, row in zip(stays, rows, strict=True)
        ),
        num_rows=max(rows, default=-1) + 1,
    )


def _rows(stays: Sequence[Stay]) -> list[int]:
    """Assign each stay, by start time, to the first free row; an episode keeps it while its environment answers."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    rows = []
    for stay in stays:
        while busy and busy[0][0] <= stay.start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        row = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (stay.end_s + stay.environment_s, row))
        rows.append(row)
    return rows


def _quantile(values: Sequence[int], share: float) -> float:
    """Return a quantile of sorted values, with interpolation."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return round(values[low] + (values[high] - values[low]) * (place - low), 1)
