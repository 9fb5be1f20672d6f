"""Metrics as columns of bounded length."""

import math

from longshore.page.curves import curves


def test_the_lines_of_a_step_are_one_point() -> None:
    found = curves([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}, {"step": 2, "val/reward/mean": 0.5}])
    assert found.steps == (1, 2)
    assert found.values == {"loss": (2.0, 1.0), "val/reward/mean": (None, 0.5)}


def test_a_step_that_was_repeated_after_a_restart_shows_its_last_values() -> None:
    found = curves([{"step": 1, "loss": 2.0}, {"step": 1, "loss": 3.0}])
    assert (found.steps, found.values["loss"]) == ((1,), (3.0,))


def test_what_is_no_finite_number_is_no_point() -> None:
    found = curves([{"step": 1, "a": math.nan, "b": None, "c": math.inf, "d": "text", "e": 1}])
    assert found.values == {"e": (1.0,)}


def test_a_long_run_is_shown_by_means_that_end_with_its_last_step() -> None:
    found = curves([{"step": step, "a": float(step)} for step in range(1, 101)], max_points=10)
    assert found.steps_per_point == 10
    assert found.steps == tuple(range(10, 101, 10))
    assert found.values["a"][0] == 5.5


def test_a_point_of_many_steps_has_the_highest_the_lowest_and_the_last_evaluation() -> None:
    rows = [{"step": step, "length/max": step % 7, "length/min": step % 7, "val/mean": step} for step in range(1, 101)]
    found = curves(rows, max_points=10)
    assert set(found.values["length/max"]) == {6.0}
    assert set(found.values["length/min"]) == {0.0}
    assert found.values["val/mean"] == tuple(float(step) for step in range(10, 101, 10))
