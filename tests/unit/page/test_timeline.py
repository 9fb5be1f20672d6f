"""Records of rounds, as the page draws them."""

import random

import pytest

from longshore.api.round_status import RoundKind
from longshore.page.timeline import digest, round_view
from longshore.record.model import LaneKind, RecordOutcome, RoundRecord, StayEnd
from tests.page_job import NUM_GPUS, record


@pytest.fixture(scope="module")
def short() -> RoundRecord:
    """A round with speculation: some groups wait for a later one."""
    return record(2, random.Random(1))


def test_engine_and_trainer_of_a_gpu_share_its_lane(short: RoundRecord) -> None:
    view = round_view(short)
    assert len(short.lanes) == 2 * NUM_GPUS
    assert [lane.label for lane in view.lanes] == [f"worker {pod}, GPU {gpu}" for pod in (0, 1) for gpu in (0, 1)]
    assert {"sampling", "training", "publishing", "idle"} <= view.seconds.keys()


def test_lanes_cover_the_step(short: RoundRecord) -> None:
    for lane in round_view(short).lanes:
        assert lane.intervals[0].start_s == 0
        assert lane.intervals[-1].end_s == pytest.approx(short.duration_s, abs=1e-3)
        for one, following in zip(lane.intervals, lane.intervals[1:], strict=False):
            assert one.end_s == following.start_s
    assert sum(round_view(short).seconds.values()) == pytest.approx(NUM_GPUS * short.duration_s, abs=0.01)


def test_every_stay_is_drawn_on_the_lane_of_its_engine(short: RoundRecord) -> None:
    engines = {lane.number: lane for lane in short.lanes if lane.kind is LaneKind.ENGINE}
    drawn = {(stay.response, stay.start_s): lane.label for lane in round_view(short).lanes for stay in lane.stays}
    assert len(drawn) == len(short.requests)
    for stay in short.requests:
        engine = engines[stay.engine]
        assert drawn[stay.response, round(stay.start_s, 4)] == f"worker {engine.pods[0]}, GPU {engine.gpus[0]}"


def test_of_too_many_stays_the_longest_are_drawn(short: RoundRecord) -> None:
    view = round_view(short, max_stays=5)
    drawn = [stay for lane in view.lanes for stay in lane.stays]
    assert len(drawn) == 5
    assert view.num_stays == len(short.requests)
    shortest_drawn_s = min(stay.end_s - stay.start_s for stay in drawn)
    longer = [stay for stay in short.requests if stay.end_s - stay.start_s > shortest_drawn_s + 1e-3]
    assert len(longer) < 5


def test_a_digest_counts_what_became_of_responses(short: RoundRecord) -> None:
    found = digest(short)
    assert found.kind is RoundKind.SHORT
    assert sum(found.outcomes.values()) == found.num_responses == len(short.responses)
    assert found.outcomes["deferred"] == sum(one.outcome is RecordOutcome.DEFERRED for one in short.responses) > 0
    assert found.num_aborted == sum(one.end is StayEnd.ABORTED for one in short.requests) > 0
    assert found.num_moved == 1
    assert found.accepted is not None and found.accepted.num == found.outcomes["accepted"]
    assert found.others is not None and found.others.num == found.num_responses - found.accepted.num


def test_an_episode_keeps_its_line_while_its_environment_answers(short: RoundRecord) -> None:
    first, *others = short.requests
    waits = first.model_copy(update={"environment_s": short.duration_s})
    rows = [
        row.model_copy(update={"engine_s": 1.0, "environment_s": 3.0}) if row.response == first.response else row
        for row in short.responses
    ]
    view = round_view(short.model_copy(update={"requests": (waits, *others), "responses": tuple(rows)}))
    (lane,) = (lane for lane in view.lanes if any(one.environment_s for one in lane.stays))
    (drawn,) = (one for one in lane.stays if one.environment_s)
    assert drawn.environment_share == 0.75
    after = [one for one in lane.stays if one.start_s >= drawn.end_s]
    assert all(one.row != drawn.row for one in after), "its line is not free for others"
