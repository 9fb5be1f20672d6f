"""The limit of the log-probability mismatch follows from the types that compute."""

import math

import pytest

from longshore.policy.log_prob_mismatch import FLOAT32_LIMIT, SIXTEEN_BIT_LIMIT, default_limit, exceeds


@pytest.mark.parametrize(
    ("engine_dtype", "engines", "trainers", "limit"),
    [
        ("auto", False, False, FLOAT32_LIMIT),
        ("float32", False, False, FLOAT32_LIMIT),
        ("bfloat16", False, False, SIXTEEN_BIT_LIMIT),
        ("float16", False, False, SIXTEEN_BIT_LIMIT),
        ("auto", True, True, SIXTEEN_BIT_LIMIT),
        ("float32", True, True, SIXTEEN_BIT_LIMIT),
        ("float32", True, False, FLOAT32_LIMIT),
        ("auto", True, False, SIXTEEN_BIT_LIMIT),
        ("auto", False, True, SIXTEEN_BIT_LIMIT),
    ],
)
def test_the_coarsest_type_sets_the_limit(engine_dtype: str, engines: bool, trainers: bool, limit: float) -> None:
    found = default_limit(
        engine_dtype=engine_dtype, engines_have_accelerators=engines, trainers_have_accelerators=trainers
    )
    assert found == limit


def test_rounding_lies_below_the_limits_and_a_stale_output_layer_above() -> None:
    """Figures that were measured: 1e-6 in float32, 0.012 in bfloat16; 3.1 with the output layer of other weights."""
    assert not exceeds(1e-6, FLOAT32_LIMIT) and not exceeds(0.012, SIXTEEN_BIT_LIMIT)
    assert exceeds(3.1 / 30, SIXTEEN_BIT_LIMIT), "also where one engine of thirty has it"


def test_what_is_not_a_number_is_past_every_limit() -> None:
    assert exceeds(math.nan, 1000.0) and exceeds(math.inf, 1000.0)
    assert not exceeds(0.1, 0.1)
