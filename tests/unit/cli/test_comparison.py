"""The quickstart's comparison with synchronous rollout."""

from collections.abc import Mapping
from typing import Any

import pytest

from longshore.api.rljob import RLJob
from longshore.api.rollout import Strategy
from longshore_cli.comparison import MAX_STEPS, Comparison, Timing, compared, synchronous
from longshore_cli.examples import manifest
from longshore_client import jobs


def example() -> dict[str, Any]:
    (job,) = [one for one in jobs.read_manifest(manifest("quickstart")) if one["kind"] == "RLJob"]
    return job


def other_side(job: dict[str, Any]) -> dict[str, Any]:
    """The job of the comparison, which there is."""
    found = synchronous(job)
    assert found is not None
    return found


def test_the_other_side_differs_in_nothing_but_its_rollout_and_its_length() -> None:
    ours, found = example(), other_side(example())
    theirs, asked = RLJob.model_validate(found).spec, RLJob.model_validate(ours).spec
    assert found["metadata"]["name"] == "quickstart-synchronous"
    assert (theirs.rollout.strategy, asked.rollout.strategy) == (Strategy.SYNCHRONOUS, Strategy.TAIL_BATCHING)
    assert theirs.rollout.engine == asked.rollout.engine
    assert theirs.algorithm == asked.algorithm.model_copy(update={"steps": MAX_STEPS})
    same = {"model", "data", "reward", "trainer", "workers", "coordinator", "storage", "checkpoint"}
    assert all(getattr(theirs, part) == getattr(asked, part) for part in same)
    assert example() == ours, "the job itself stays as it was"


def test_the_other_side_has_an_output_of_its_own() -> None:
    """Otherwise it would find the checkpoints of the job, which are of another strategy, and fail."""
    job = example()
    job["spec"]["storage"]["output"] = "runs/quickstart"
    found = other_side(job)
    assert "output" not in found["spec"]["storage"]
    assert job["spec"]["storage"]["output"] == "runs/quickstart"


@pytest.mark.parametrize("strategy", [None, "PartialRollout", "ReorderRollout"])
def test_settings_of_the_strategy_are_left_behind(strategy: str | None) -> None:
    job = example()
    job["spec"]["rollout"] = {"strategy": strategy, "partialRollout": {}, "repurposing": {"trigger": "Adaptive"}}
    if strategy is None:
        job["spec"].pop("rollout")
    found = other_side(job)
    assert found["spec"]["rollout"] == {"strategy": "Synchronous"}


def test_a_synchronous_job_is_not_compared_with_itself() -> None:
    job = example()
    job["spec"]["rollout"] = {"strategy": "Synchronous"}
    assert synchronous(job) is None


def timings(step_s: Mapping[int, float], steps_per_s: float) -> dict[int, Timing]:
    return {step: Timing(seconds, seconds * steps_per_s) for step, seconds in step_s.items()}


def test_the_steps_that_both_have_timed_are_compared_but_the_first() -> None:
    """In the first step pods connect and caches fill."""
    ours = timings({1: 9.0, 2: 1.0, 3: 2.0, 4: 100.0, 20: 100.0}, steps_per_s=100)
    theirs = timings({1: 2.0, 2: 2.0, 3: 4.0, 5: 100.0}, steps_per_s=200)
    found = compared(ours, theirs, period=5)
    assert found == Comparison(first_step=2, last_step=3, ours=Timing(1.5, 150), synchronous=Timing(3.0, 600))
    assert str(found) == "1.5s, 3.0s with synchronous rollout: a step is 2.00 times as fast (steps 2 to 3 of both)"
    assert found.decode_steps == "150 per step, 600 with synchronous rollout: 4.00 times as many"
    assert compared(timings({1: 1.0, 2: 1.0}, 1), timings({1: 1.0, 3: 1.0}, 1), period=5) is None
