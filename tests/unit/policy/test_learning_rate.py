"""The learning rate of every optimizer step, by its number alone."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.algorithm import LearningRateSchedule
from longshore.policy.learning_rate import ScheduleOptions, learning_rate
from tests.properties import examples

CONSTANT = ScheduleOptions(
    learning_rate=0.5, schedule=LearningRateSchedule.CONSTANT, warmup_steps=4, num_steps=10, min_ratio=0.0
)


def rates(options: ScheduleOptions, *steps: int) -> list[float]:
    return [learning_rate(options, step) for step in steps]


def test_it_rises_over_the_warm_up_and_stays() -> None:
    assert rates(CONSTANT, 1, 2, 4, 5, 99) == [0.125, 0.25, 0.5, 0.5, 0.5]
    assert rates(replace(CONSTANT, warmup_steps=0), 1, 2) == [0.5, 0.5]


def test_it_falls_on_a_line_from_the_end_of_the_warm_up_to_past_the_end_of_the_job() -> None:
    linear = replace(CONSTANT, schedule=LearningRateSchedule.LINEAR, num_steps=8)
    assert rates(linear, 3, 4, 5, 6, 7, 8) == pytest.approx([0.375, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert rates(linear, 9, 10, 99) == [0.0, 0.0, 0.0], "draining"
    assert rates(replace(linear, min_ratio=0.5), 4, 9, 99) == [0.5, 0.25, 0.25]


def test_it_falls_on_half_a_cosine() -> None:
    cosine = replace(CONSTANT, schedule=LearningRateSchedule.COSINE, warmup_steps=0, num_steps=4)
    assert rates(cosine, 1, 3, 5) == pytest.approx([0.5, 0.25, 0.0])
    assert learning_rate(cosine, 2) == pytest.approx(0.25 * (1 + math.cos(math.pi / 4)))


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(LearningRateSchedule), st.integers(0, 30), st.integers(1, 30), st.floats(0, 1), st.integers(1, 80)
)
def test_it_never_leaves_its_bounds_and_never_jumps(
    schedule: LearningRateSchedule, warmup_steps: int, num_steps: int, min_ratio: float, step: int
) -> None:
    options = ScheduleOptions(1.0, schedule, warmup_steps, num_steps, min_ratio)
    now, then = rates(options, step, step + 1)
    assert 0.0 <= now <= 1.0
    if step < warmup_steps:
        assert now < then
    else:
        assert now >= then >= (1.0 if schedule is LearningRateSchedule.CONSTANT else min_ratio) - 1e-12
