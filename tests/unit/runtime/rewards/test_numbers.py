"""A reward is the same number wherever it is scored, or none."""

import math
from typing import Any

import numpy as np
import pytest

from longshore_runtime.rewards.numbers import MAX_REWARD, finite_reward


@pytest.mark.parametrize("value", [0, 0.5, -MAX_REWARD, MAX_REWARD, int(MAX_REWARD), np.float32(0.5), np.int64(3)])
def test_a_number_within_the_bounds_is_a_reward(value: Any) -> None:
    assert finite_reward(value) == float(value)


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
