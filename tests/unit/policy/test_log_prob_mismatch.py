"""The limit of the log-probability mismatch follows from the types that compute."""

import math

import pytest

from longshore.api.training import TrainerDtype
from longshore.policy.log_prob_mismatch import FLOAT32_LIMIT, SIXTEEN_BIT_LIMIT, default_limit, exceeds

FLOAT32, BFLOAT16 = TrainerDtype.FLOAT32, TrainerDtype.BFLOAT16


@pytest.mark.parametrize(
    ("engine_dtype", "engines", "dtype", "limit"),
    [
        ("auto", False, FLOAT32, FLOAT32_LIMIT),
        ("float32", False, FLOAT32, FLOAT32_LIMIT),
        ("bfloat16", False, FLOAT32, SIXTEEN_BIT_LIMIT),
        ("float16", False, FLOAT32, SIXTEEN_BIT_LIMIT),
        ("auto", True, BFLOAT16, SIXTEEN_BIT_LIMIT),
        ("float32", True, BFLOAT16, SIXTEEN_BIT_LIMIT),
        ("float32", True, FLOAT32, FLOAT32_LIMIT),
        ("auto", True, FLOAT32, SIXTEEN_BIT_LIMIT),
        ("float32", False, BFLOAT16, SIXTEEN_BIT_LIMIT),
    ],
)
def test_the_coarsest_type_sets_the_limit(engine_dtype: str, engines: bool, dtype: TrainerDtype, limit: float) -> None:
    assert default_limit(engine_dtype=engine_dtype, engines_have_accelerators=engines, dtype=dtype) == limit


def test_rounding_lies_below_the_limits_and_a_stale_output_layer_above() -> None:
    """Figures that were measured: 1e-6 in float32, 0.012 in bfloat16; 3.1 with the output layer of other weights."""
    assert not exceeds(1e-6, FLOAT32_LIMIT) and not exceeds(0.012, SIXTEEN_BIT_LIMIT)
    assert exceeds(3.1 / 30, SIXTEEN_BIT_LIMIT), "also where one engine of thirty has it"


def test_what_is_not_a_number_is_past_every_limit() -> None:
    assert exceeds(math.nan, 1000.0) and exceeds(math.inf, 1000.0)
    assert not exceeds(0.1, 0.1)
