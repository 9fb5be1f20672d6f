"""The built-in task: long-tailed, honest about held-out prompts, and never paying for stopping early."""

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_runtime.tasks import counting
from longshore_runtime.tasks.counting import CountingRow, demonstrations, generate, held_out, score

numbers = st.integers(1, counting.LARGEST_NUMBER)


def answer(number: int, last: int = 1) -> str:
    return " ".join(f"k{n}" for n in range(number, last - 1, -1))


def test_a_prompt_asks_to_count_down_with_its_letter() -> None:
    assert CountingRow("k4:", "k4 k3 k2 k1") in generate(4096, seed=0)


def test_no_held_out_prompt_is_trained_on_or_demonstrated() -> None:
    secret = {row.prompt for seed in range(5) for row in held_out(200, seed)}
    shown = {row.prompt for row in generate(20_000, 0)}
    shown |= {d.prompt for d in islice(demonstrations(random.Random(0), 0.5), 20_000)}
    assert len(secret) > 100
    assert not secret & shown


@given(numbers)
def test_the_answer_alone_is_worth_one(number: int) -> None:
    assert score(answer(number), answer(number)) == 1.0


@given(numbers, st.text(max_size=40))
def test_every_score_is_between_zero_and_one_and_only_the_answer_exceeds_a_half(number: int, response: str) -> None:
    value = score(response, answer(number))
    assert 0.0 <= value <= 1.0
    assert value <= 0.5 or response == answer(number)


@pytest.mark.parametrize(
    ("response", "expected"),
    [("", 0.0), ("k4", 0.125), ("k4 k3 k2", 0.375), ("k4 k2 k1", 0.125), ("k4 k3 k2 k1 k0", 0.4), ("j4 j3 j2 j1", 0.0)],
)
def test_partial_credit_is_the_share_of_right_numbers_from_the_start(response: str, expected: float) -> None:
    assert score(response, "k4 k3 k2 k1") == pytest.approx(expected)
