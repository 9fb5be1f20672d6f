"""The built-in task: long-tailed, honest about held-out prompts, and never paying for stopping early."""

import random
from collections.abc import Sequence
from itertools import islice
from statistics import quantiles

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


def test_equal_seeds_give_equal_rows_and_others_do_not() -> None:
    assert generate(50, seed=1) == generate(50, seed=1) != generate(50, seed=2)
    assert held_out(50, seed=1) == held_out(50, seed=1) != held_out(50, seed=2)


@pytest.mark.parametrize("seed", range(3))
def test_response_lengths_have_a_long_tail(seed: int) -> None:
    lengths = [len(row.answer) + 1 for row in generate(4096, seed)]
    assert max(lengths) >= 10 * quantiles(lengths, n=4)[2]
    assert quantiles(lengths, n=4)[1] <= 12


def test_no_held_out_prompt_is_trained_on_or_demonstrated() -> None:
    secret = {row.prompt for seed in range(5) for row in held_out(200, seed)}
    shown = {row.prompt for row in generate(20_000, 0)}
    shown |= {d.prompt for d in islice(demonstrations(random.Random(0), 0.5), 20_000)}
    assert len(secret) > 100
    assert not secret & shown


def test_held_out_prompts_come_sorted_and_their_longest_quartile_reaches_into_the_tail() -> None:
    lengths = [len(row.answer) for row in held_out(64, seed=0)]
    assert lengths == sorted(lengths)
    longest = lengths[48:]
    assert min(longest) > 2 * lengths[32]
    assert len(set(longest)) > 10
    assert max(longest) > 150


@given(numbers)
def test_the_answer_alone_is_worth_one(number: int) -> None:
    assert score(answer(number), answer(number)) == 1.0


@given(numbers, st.text(max_size=40))
def test_every_score_is_between_zero_and_one_and_only_the_answer_exceeds_a_half(number: int, response: str) -> None:
    value = score(response, answer(number))
    assert 0.0 <= value <= 1.0
    assert value <= 0.5 or response == answer(number)


@given(st.integers(2, counting.LARGEST_NUMBER), st.data())
def test_every_further_right_number_pays(number: int, data: st.DataObject) -> None:
    last = data.draw(st.integers(2, number))
    assert score(answer(number, last), answer(number)) < score(answer(number, last - 1), answer(number))


@given(st.integers(2, counting.LARGEST_NUMBER), st.data())
def test_going_on_after_a_mistake_costs_nothing_until_the_length_of_the_answer(
    number: int, data: st.DataObject
) -> None:
    num_right = data.draw(st.integers(0, number - 1))
    right, wrong = answer(number).split(" ")[:num_right], ["k0"] * (number - num_right)
    assert score(" ".join([*right, *wrong]), answer(number)) == score(" ".join([*right, "k0"]), answer(number))


@pytest.mark.parametrize(
    ("response", "expected"),
    [("", 0.0), ("k4", 0.125), ("k4 k3 k2", 0.375), ("k4 k2 k1", 0.125), ("k4 k3 k2 k1 k0", 0.4), ("j4 j3 j2 j1", 0.0)],
)
def test_partial_credit_is_the_share_of_right_numbers_from_the_start(response: str, expected: float) -> None:
    assert score(response, "k4 k3 k2 k1") == pytest.approx(expected)


def test_demonstrations_are_as_good_as_asked_for() -> None:
    def mean(share_right: float) -> float:
        shown = list(islice(demonstrations(random.Random(0), share_right), 2_000))
        scores: Sequence[float] = [score(d.response, answers[d.prompt]) for d in shown if d.prompt in answers]
        return sum(scores) / len(scores)

    answers = {row.prompt: row.answer for row in generate(20_000, 0)}
    assert mean(1.0) == 1.0
    assert 0.2 < mean(0.0) < mean(0.4) < 0.9
