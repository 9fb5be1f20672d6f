"""A reward is the same number wherever it is scored, or none."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from longshore_runtime.rewards.numbers import MAX_REWARD, finite_reward


@pytest.mark.parametrize("value", [0, 0.5, -MAX_REWARD, MAX_REWARD, int(MAX_REWARD), np.float32(0.5), np.int64(3)])
def test_a_number_within_the_bounds_is_a_reward(value: Any) -> None:
    assert finite_reward(value) == float(value)


class Score:
    """What converts itself."""

    def __float__(self) -> float:
        return 0.25


@pytest.mark.parametrize(
    "value",
    [Decimal("0.5"), Fraction(1, 2), Score(), np.array(0.5), np.array([[0.5]])],
)
def test_what_converts_itself_to_a_float_is_a_reward(value: Any) -> None:
    assert finite_reward(value) in (0.25, 0.5)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            np.array([1.0, 2.0]),
            r"^returned array\(\[1., 2.\]\), which float\(\) does not convert \(ValueError: can only ",
        ),
        (np.bool_(True), "instead of a number$"),
        (np.str_("1"), "instead of a number$"),
        (1 + 0j, r"^returned \(1\+0j\) instead of a number$"),
        (np.complex64(1), "instead of a number$"),
        (Decimal("sNaN"), r"^returned Decimal\('sNaN'\), which float\(\) does not convert"),
    ],
)
def test_refusal_says_what_is_wrong_with_a_reward(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        finite_reward(value)


@pytest.mark.parametrize(
    "value",
    [
        2e9,
        -2e9,
        10**400,
        math.nan,
        math.inf,
        np.float16("inf"),
        np.float16("-inf"),
        np.float16("nan"),
        True,
        "1",
        None,
    ],
)
def test_a_reward_that_a_pod_could_not_send_is_refused_in_every_worker(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^returned .* instead of a number"):
        finite_reward(value)
