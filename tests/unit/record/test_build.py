"""The record of a round: lanes without gaps, and an outcome for every response."""

import contextlib
import gzip
import itertools
import json
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.names import Component
from longshore.record.build import round_record
from longshore.record.facts import LanePlace, TrainerPass, UpdatePasses
from longshore.record.history import Absence, EngineStay, RoundHistory
from longshore.record.lanes import Span, engine_spans, flattened, trainer_spans, training_spans
from longshore.record.model import LaneState, PhaseName, RecordOutcome, RoundRecord, StayEnd, file_name, step_of
from longshore.record.timeline import gpu_lanes
from tests.properties import examples
from tests.unit.policy.rounds import Job
from tests.unit.policy.tables import response
from tests.unit.policy.test_round_policies import jobs
from tests.unit.record.facts import STARTED, TAIL_BATCHING, played

S = LaneState


def assert_covers(spans: list[tuple[float, float]], duration_s: float) -> None:
    assert spans[0][0] == 0.0
    assert spans[-1][1] == pytest.approx(duration_s)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(spans))


@settings(max_examples=examples(40), deadline=None)
@given(jobs(), st.integers(0, 2**32), st.booleans())
def test_every_lane_is_covered_and_every_response_has_an_outcome(job: Job, seed: int, is_colocated: bool) -> None:
    for one in played(job, seed, is_colocated=is_colocated):
        record, totals = round_record(one.facts), one.facts.totals
        of_lane = defaultdict(list)
        for interval in record.intervals:
            of_lane[interval.lane].append((interval.start_s, interval.end_s))
        assert of_lane.keys() == {lane.lane for lane in record.lanes}
        for spans in of_lane.values():
            assert_covers(spans, record.duration_s)
        for gpu in gpu_lanes(record):
            assert_covers([(start_s, end_s) for _, start_s, end_s in gpu.spans], record.duration_s)
        assert len(gpu_lanes(record)) == 2, "engine and replica of a pod share its GPU"
        num_accepted = sum(row.outcome is RecordOutcome.ACCEPTED for row in record.responses)
        # Partial rollout also accepts responses that an earlier round finished.
        assert num_accepted <= sum(len(group.responses) for group in totals.end.accepted)
        assert {row.response for row in record.responses} == {stay.response for stay in record.requests}
        assert {row.draw for row in record.groups if row.outcome is RecordOutcome.DEFERRED} <= set(
            map(str, totals.end.deferred)
        )


@settings(max_examples=examples(10), deadline=None)
@given(jobs(), st.integers(0, 2**32))
def test_a_record_survives_its_file_and_the_same_round_gives_the_same_file(job: Job, seed: int) -> None:
    record = round_record(played(job, seed, num_rounds=1)[0].facts)
    assert RoundRecord.from_bytes(record.to_bytes()) == record
    assert round_record(played(job, seed, num_rounds=1)[0].facts).to_bytes() == record.to_bytes()


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(ValueError, match="no record of a round"):
        RoundRecord.from_bytes(b"{}")


def test_a_damaged_record_is_refused_wherever_the_damage_is() -> None:
    content = round_record(played(TAIL_BATCHING, 3)[0].facts).to_bytes()
    for place in range(0, len(content), max(1, len(content) // 100)):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        with contextlib.suppress(ValueError):  # A byte that the reader ignores does no harm.
            RoundRecord.from_bytes(bytes(damaged))
    with pytest.raises(ValueError, match="no record of a round"):
        RoundRecord.from_bytes(content[: len(content) // 2] + bytes(64) + content[len(content) // 2 + 64 :])


def test_a_record_of_a_later_version_with_more_fields_is_read() -> None:
    record = round_record(played(TAIL_BATCHING, 3)[0].facts)
    content = json.loads(gzip.decompress(record.to_bytes())) | {"new": 1}
    assert RoundRecord.from_bytes(gzip.compress(json.dumps(content).encode())) == record


def test_files_are_named_after_steps() -> None:
    names = [file_name(12), file_name(1_234_567), "round-12.json.gz", ".round-000012.json.gz"]
    assert [step_of(name) for name in names] == [12, 1_234_567, None, None]


@given(
    st.lists(
        st.tuples(st.sampled_from(list(S)), st.integers(-3, 20), st.integers(-3, 20)).filter(
            lambda one: one[1] < one[2]
        )
    )
)
def test_of_layers_the_last_one_is_seen(layers: list[tuple[LaneState, int, int]]) -> None:
    floats: list[Span] = [(S.IDLE, 0.0, 17.0), *((state, float(start), float(end)) for state, start, end in layers)]
    spans = flattened(floats, 0.0, 17.0)
    assert_covers([(start, end) for _, start, end in spans], 17.0)
    for second in range(17):
        (shown,) = [state for state, start, end in spans if start <= second < end]
        assert shown is [state for state, start, end in floats if start <= second < end][-1]
    assert all(before[0] is not after[0] for before, after in itertools.pairwise(spans))


def test_a_replica_computes_what_it_is_given_in_turn_and_updates_wait_for_all() -> None:
    update = UpdatePasses((TrainerPass(0, 0.0, 3.0), TrainerPass(1, 0.0, 5.0), TrainerPass(0, 1.0, 1.0)), 2.0)
    after = UpdatePasses((TrainerPass(0, 2.0, 1.0), TrainerPass(1, 20.0, 1.0)), 0.0)
    assert training_spans([update, after], 2) == {
        0: [(0.0, 3.0), (3.0, 4.0), (5.0, 7.0), (7.0, 8.0)],
        1: [(0.0, 5.0), (5.0, 7.0), (20.0, 21.0)],
    }


ONE = played(TAIL_BATCHING, 3)[0].facts
"""On two engines of pods 0 and 1, which are also where the replicas are; begun at -2, regrouped at -1."""
END_S = ONE.marks.published_s
SCORED_S, TRAINED_S = ONE.marks.scored_s, ONE.marks.trained_s


def stays(*spans: tuple[int, float, float]) -> list[EngineStay]:
    return [EngineStay(response("A0"), engine, start, end, 1, StayEnd.FINISHED) for engine, start, end in spans]


def test_an_engine_samples_while_it_has_requests_and_sleeps_while_its_gpus_train() -> None:
    assert engine_spans(ONE, RoundHistory(stays((0, 0.0, 3.0), (1, 0.0, 9.0))), 0) == [
        (S.REGROUPING, -2.0, -1.0),
        (S.IDLE, -1.0, 0.0),
        (S.SAMPLING, 0.0, 3.0),
        (S.IDLE, 3.0, SCORED_S),
        (S.ASLEEP, SCORED_S, TRAINED_S),
        (S.PUBLISHING, TRAINED_S, END_S),
    ]


def test_an_engine_with_gpus_of_its_own_waits_for_the_trainers() -> None:
    spans = engine_spans(replace(ONE, is_colocated=False), RoundHistory(stays((0, 0.0, 3.0))), 0)
    assert [state for state, *_ in spans] == [S.REGROUPING, S.IDLE, S.SAMPLING, S.IDLE, S.PUBLISHING]


def test_an_engine_that_is_lost_samples_nothing_until_it_joins() -> None:
    found = RoundHistory(stays((0, 0.0, 1.0), (0, 4.0, 5.0)), [Absence(0, 1.0, 4.0), Absence(1, 2.0, None)])
    assert (S.LOST, 1.0, 4.0) in engine_spans(ONE, found, 0)
    assert [state for state, *_ in engine_spans(ONE, found, 1)][-2:] == [S.LOST, S.PUBLISHING]


def test_pods_that_are_repurposed_train_for_the_rest_of_the_round() -> None:
    found = RoundHistory(stays((0, 0.0, 2.5), (1, 0.0, 6.0)), retired_s={0: 2.0}, drained_s=2.5)
    repurposed = replace(ONE, repurposed_s=4.0)
    assert engine_spans(repurposed, found, 0)[2:] == [
        (S.SAMPLING, 0.0, 2.5),
        (S.REPURPOSING, 2.5, 4.0),
        (S.ASLEEP, 4.0, TRAINED_S),
        (S.PUBLISHING, TRAINED_S, END_S),
    ]
    here, elsewhere = (trainer_spans(repurposed, found, place, {0: [(4.5, 5.0)]}) for place in ONE.trainers)
    assert here[:4] == [(S.ASLEEP, -2.0, 2.5), (S.REPURPOSING, 2.5, 4.0), (S.IDLE, 4.0, 4.5), (S.TRAINING, 4.5, 5.0)]
    assert elsewhere == [(S.ASLEEP, -2.0, SCORED_S), (S.IDLE, SCORED_S, TRAINED_S), (S.PUBLISHING, TRAINED_S, END_S)]


def test_phases_follow_each_other_and_times_count_from_the_begin_of_the_step() -> None:
    record = round_record(ONE)
    names = [phase.name for phase in record.phases]
    assert names[:3] == [PhaseName.REGROUP, PhaseName.REFUSED, PhaseName.ROLLOUT]
    assert_covers([(phase.start_s, phase.end_s) for phase in record.phases], record.duration_s)
    assert (record.started, record.phases[2].start_s) == (STARTED + 1_000.0, 2.0)


def test_phases_that_did_not_take_place_are_left_out_and_leave_no_gap() -> None:
    marks = replace(ONE.marks, regrouped_s=-1.9999, started_s=-1.9998)
    first, *_ = round_record(replace(ONE, marks=marks)).phases
    assert (first.name, first.start_s) == (PhaseName.ROLLOUT, 0.0)


def test_a_lane_per_gpu_shows_what_either_does() -> None:
    apart = tuple(LanePlace(number, (0,), Component.WORKER, (number,)) for number in range(2))
    pair = (LanePlace(0, (0,), Component.WORKER, (0, 1)),)
    of_two = gpu_lanes(round_record(replace(ONE, engines=pair, trainers=apart)))
    assert [(lane.name, lane.gpus, len(lane.lanes)) for lane in of_two] == [("worker 0, GPUs 0 to 1", (0, 1), 3)]
    states = {state for state, *_ in of_two[0].spans}
    assert {S.SAMPLING, S.TRAINING, S.PUBLISHING} <= states
    alone = (UpdatePasses((TrainerPass(0, SCORED_S, 4.0),), 2.0),)
    of_one = gpu_lanes(round_record(replace(ONE, engines=apart, trainers=pair, updates=alone)))
    assert [(lane.name, len(lane.lanes)) for lane in of_one] == [("worker 0, GPU 0", 2), ("worker 0, GPU 1", 2)]
    assert all(S.TRAINING in {state for state, *_ in lane.spans} for lane in of_one), "the replica has both GPUs"
    without_gpus = tuple(replace(place, gpus=()) for place in ONE.engines)
    on_cpus = gpu_lanes(round_record(replace(ONE, engines=without_gpus, trainers=without_gpus)))
    assert [lane.name for lane in on_cpus] == ["worker 0, engine 0 and trainer 0", "worker 1, engine 1 and trainer 1"]
    own = tuple(replace(place, component=Component.TRAINER) for place in ONE.trainers)
    assert len(gpu_lanes(round_record(replace(ONE, trainers=own)))) == 4
