"""The layout of timelines."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.rollout import Strategy
from longshore.sim.hardware import GPUS
from longshore.sim.job import GpuPool, TrainerLayout, Training
from longshore.sim.result import Work
from longshore.sim.simulate import simulate
from longshore.sim.timeline import Activity, Timeline, timeline
from tests.properties import examples
from tests.unit.sim.jobs import IN_TURNS, job

OWN_GPUS = TrainerLayout(Training.PIPELINED, GpuPool(GPUS["RTX4090"], 4), gpus_per_replica=2, groups_per_update=4)
STREAMED = TrainerLayout(Training.STREAMED, gpus_per_replica=2)


def gpu_seconds(drawn: Timeline, activity: Activity) -> float:
    return sum(
        piece.num_gpus * (piece.end_s - piece.start_s) for piece in drawn.rectangles if piece.activity is activity
    )


@settings(max_examples=examples(20), deadline=None)
@given(st.sampled_from(Strategy), st.sampled_from([IN_TURNS, OWN_GPUS, STREAMED]), st.integers(1, 3))
def test_rectangles_tile_every_gpu_from_the_first_second_to_the_last(
    strategy: Strategy, trainer: TrainerLayout, num_steps: int
) -> None:
    drawn = timeline(simulate(job(strategy, trainer=trainer), 3), num_steps)
    for gpu in range(drawn.num_gpus):
        row = sorted(
            (piece.start_s, piece.end_s)
            for piece in drawn.rectangles
            if piece.first_gpu <= gpu < piece.first_gpu + piece.num_gpus
        )
        assert row[0][0] == pytest.approx(0, abs=1e-5)
        assert row[-1][1] == pytest.approx(drawn.end_s)
        assert all(before[1] == pytest.approx(after[0], abs=1e-5) for before, after in pairwise(row))


def test_bubbles_are_those_of_the_result() -> None:
    result = simulate(job(), 3)
    drawn = timeline(result, 3)
    assert drawn.end_s == pytest.approx(result.total_s)
    idle_share = gpu_seconds(drawn, Activity.BUBBLE) / (drawn.num_gpus * drawn.end_s)
    assert idle_share == pytest.approx(result.bubble_share)
    trained_s = sum(span.end_s - span.start_s for span in result.spans if span.work is Work.TRAINING)
    assert gpu_seconds(drawn, Activity.TRAINER) == pytest.approx(trained_s)
