"""Soft overlong punishment (DAPO, equation 13)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.policy.overlong import overlong_punishment


@pytest.mark.parametrize(
    ("num_tokens", "punishment"),
    [
        (0, 0.0),
        (16_383, 0.0),
        (16_384, 0.0),
        (16_385, -1 / 4_096),
        (17_408, -0.25),
        (18_432, -0.5),
        (20_479, -4_095 / 4_096),
        (20_480, -1.0),
        (20_481, -1.0),
        (40_000, -1.0),
    ],
)
def test_the_paper_s_own_numbers(num_tokens: int, punishment: float) -> None:
    assert overlong_punishment(num_tokens, max_tokens=20_480, buffer_tokens=4_096, penalty=1.0) == punishment


@pytest.mark.parametrize("num_tokens", [0, 99, 100, 200])
def test_no_buffer_punishes_nothing(num_tokens: int) -> None:
    assert overlong_punishment(num_tokens, max_tokens=100, buffer_tokens=0, penalty=1.0) == 0.0


def test_a_buffer_as_long_as_the_response_punishes_every_token() -> None:
    values = [overlong_punishment(number, max_tokens=4, buffer_tokens=4, penalty=2.0) for number in range(5)]
    assert values == [0.0, -0.5, -1.0, -1.5, -2.0]


@given(st.integers(1, 1_000), st.data(), st.floats(0, 10))
def test_longer_is_never_better_and_nothing_loses_more_than_the_penalty(
    max_tokens: int, data: st.DataObject, penalty: float
) -> None:
    buffer_tokens = data.draw(st.integers(0, max_tokens))
    lengths = sorted(data.draw(st.lists(st.integers(0, 2_000), min_size=2)))
    values = [
        overlong_punishment(length, max_tokens=max_tokens, buffer_tokens=buffer_tokens, penalty=penalty)
        for length in lengths
    ]
    assert values == sorted(values, reverse=True)
    assert all(-penalty <= value <= 0.0 for value in values)
