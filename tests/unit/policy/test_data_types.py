"""One decision for engines and trainers; pods are measured only where it depends on them."""

import pytest

from longshore.api.rollout import EngineDtype
from longshore.api.training import TrainerDtype
from longshore.policy.data_types import LEAST_SPEEDUP, chosen_data_types

AUTO, SINGLE, HALF, NARROW = EngineDtype.AUTO, EngineDtype.FLOAT32, EngineDtype.FLOAT16, EngineDtype.BFLOAT16


def chosen(engine: EngineDtype, trainer: str | None, speedup: float | None, *, gpus: str = "") -> tuple[str, str]:
    """Types of engines and trainers; without `speedup`, nothing may be measured."""

    def race() -> float:
        assert speedup is not None, "the job says it already"
        return speedup

    return chosen_data_types(
        engine,
        None if trainer is None else TrainerDtype(trainer),
        race,
        engines_have_accelerators="engines" in gpus,
        trainers_have_accelerators="trainers" in gpus,
    )


@pytest.mark.parametrize(("speedup", "dtype"), [(0.1, SINGLE), (LEAST_SPEEDUP - 0.1, SINGLE), (3.0, NARROW)])
def test_engines_and_trainers_on_cpus_take_what_the_race_shows(speedup: float, dtype: EngineDtype) -> None:
    assert chosen(AUTO, None, speedup) == (dtype, dtype)


@pytest.mark.parametrize(
    ("engine", "trainer", "expected"),
    [
        (NARROW, None, (NARROW, NARROW)),
        (SINGLE, None, (SINGLE, SINGLE)),
        (HALF, None, (HALF, SINGLE)),
        (AUTO, "bfloat16", (NARROW, NARROW)),
        (AUTO, "float32", (SINGLE, SINGLE)),
        (SINGLE, "bfloat16", (SINGLE, NARROW)),
    ],
)
def test_a_type_that_the_job_sets_is_taken_by_the_other_side(
    engine: EngineDtype, trainer: str | None, expected: tuple[str, str]
) -> None:
    assert chosen(engine, trainer, None) == expected


def test_nothing_is_measured_where_trainers_have_gpus() -> None:
    assert chosen(AUTO, None, None, gpus="engines trainers") == (AUTO, NARROW)
    assert chosen(AUTO, "float32", None, gpus="engines trainers") == (AUTO, SINGLE)
    assert chosen(AUTO, None, None, gpus="trainers") == (SINGLE, NARROW)


def test_trainers_on_cpus_are_measured_whatever_engines_on_gpus_compute_in() -> None:
    assert chosen(NARROW, None, 0.1, gpus="engines") == (NARROW, SINGLE)
    assert chosen(AUTO, None, 3.0, gpus="engines") == (AUTO, NARROW)
