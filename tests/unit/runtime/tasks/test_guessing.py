"""The built-in task with turns: it rewards the use of answers, and hides its secrets."""

import itertools
import random
import string
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_runtime.tasks import guessing
from longshore_runtime.tasks.demonstration import Segment
from longshore_runtime.tasks.guessing import Guessing, GuessingRow, demonstrations, generate, held_out, par

LETTERS = string.ascii_lowercase


def between(low: str, high: str) -> str:
    return LETTERS[LETTERS.index(low) : LETTERS.index(high) + 1]


def game_of(row: GuessingRow) -> Guessing:
    game = Guessing()
    game.reset(low=row.low, high=row.high, secret=row.secret)
    return game


@st.composite
def rows(draw: st.DrawFn) -> GuessingRow:
    first, last = sorted(draw(st.tuples(st.integers(0, 25), st.integers(0, 25))))
    return GuessingRow(LETTERS[first], LETTERS[last], draw(st.sampled_from(LETTERS[first : last + 1])))


def play(row: GuessingRow, guess_of: Callable[[str], str]) -> tuple[int, float]:
    """Return the guesses that a player who uses the answers needs, and the reward."""
    game, left = game_of(row), between(row.low, row.high)
    for turn in itertools.count(1):
        guess = guess_of(left)
        answer = game.reply(guess)
        if answer is None:
            return turn, game.get_reward()
        left = left[: left.index(guess)] if answer == "<" else left[left.index(guess) + 1 :]
    raise AssertionError


@pytest.mark.parametrize("size", range(1, 27))
def test_binary_search_always_earns_one_and_needs_par_at_worst(size: int) -> None:
    low, high = LETTERS[0], LETTERS[size - 1]
    played = [play(GuessingRow(low, high, secret), lambda left: left[len(left) // 2]) for secret in between(low, high)]
    assert max(num_guesses for num_guesses, _ in played) == par(low, high)
    assert {reward for _, reward in played} == {1.0}


@given(rows())
def test_each_guess_over_par_halves_the_reward(row: GuessingRow) -> None:
    num_guesses, reward = play(row, lambda left: left[0])
    assert reward == 0.5 ** max(0, num_guesses - par(row.low, row.high))


def test_different_guesses_without_regard_to_the_answers_earn_less_than_half() -> None:
    rewards = []
    for row in held_out(1000, 0):
        game, letters = game_of(row), between(row.low, row.high)
        any(game.reply(guess) is None for guess in letters[: guessing.MAX_DEMONSTRATED_TURNS])
        rewards.append(game.get_reward())
    assert 0.2 < sum(rewards) / len(rewards) < 0.5


@given(rows(), st.lists(st.one_of(st.sampled_from(LETTERS), st.text(max_size=3), st.just("9" * 5000)), max_size=12))
def test_any_message_is_answered_and_the_reward_is_between_zero_and_one(row: GuessingRow, messages: list[str]) -> None:
    game = game_of(row)
    for message in messages:
        answer = game.reply(message)
        assert answer in ("<", ">", "?", None)
        assert 0.0 <= game.get_reward() <= 1.0
        assert (answer is None) is (message == row.secret)
        if answer is None:
            break
    else:
        assert game.get_reward() == 0.0


@pytest.mark.parametrize(
    ("message", "answer"),
    [("h", ">"), ("k", "<"), ("i", None), ("a", ">"), ("z", "<")]
    + [(unreadable, "?") for unreadable in ("", " ", "I", "hi", "7", "?", "\u0456")],
)
def test_a_letter_is_answered_even_out_of_range_and_all_else_by_a_question_mark(
    message: str, answer: str | None
) -> None:
    assert game_of(GuessingRow("d", "t", "i")).reply(message) == answer


def test_an_unreadable_guess_counts_as_a_guess() -> None:
    game = game_of(GuessingRow("a", "a", "a"))
    assert game.reply("?") == "?"
    assert game.reply("a") is None
    assert game.get_reward() == 0.5


def test_an_episode_begins_with_a_prompt_that_fits_every_secret_of_its_range() -> None:
    prompts = {GuessingRow("d", "t", secret).prompt for secret in between("d", "t")}
    assert prompts == {"d-t?"}
    assert Guessing().reset(low="d", high="t", secret="i", source="more") is None


@pytest.mark.parametrize("rows_of", [generate, held_out])
def test_equal_seeds_give_equal_rows_with_the_secret_in_a_large_range(
    rows_of: Callable[[int, int], list[GuessingRow]],
) -> None:
    drawn = rows_of(500, 3)
    assert drawn == rows_of(500, 3) != rows_of(500, 4)
    assert all(row.secret in between(row.low, row.high) for row in drawn)
    assert all(len(between(row.low, row.high)) >= guessing.SMALLEST_SIZE for row in drawn)


def test_no_held_out_range_is_trained_on_or_demonstrated() -> None:
    kept = {row.prompt for seed in range(5) for row in held_out(200, seed)}
    shown = {row.prompt for row in generate(20_000, 0)}
    shown |= {one.segments[0].text for one in itertools.islice(demonstrations(random.Random(0), 0.5), 20_000)}
    assert len(kept) > 20
    assert len(shown) > 150
    assert not kept & shown


@pytest.mark.parametrize("share_right", [0.0, 0.5, 1.0])
def test_demonstrations_are_real_games_of_which_the_right_ones_win(share_right: float) -> None:
    rewards = [replayed(one.segments) for one in itertools.islice(demonstrations(random.Random(1), share_right), 500)]
    num_won = sum(reward == 1.0 for reward in rewards)
    assert (num_won == 500) is (share_right == 1.0)
    assert num_won >= 450 * share_right
    assert num_won <= 500 * share_right + 250, "bad habits pay less"


def replayed(segments: tuple[Segment, ...]) -> float:
    """Return the reward of a demonstrated episode, for the only secrets that fit its answers; check its end."""
    prompt, *turns = segments
    guesses, answers = turns[::2], turns[1::2]
    assert all(guess.is_models for guess in guesses)
    assert not any(context.is_models for context in (prompt, *answers))
    assert len(answers) == len(guesses) - 1, "the model has the last word"
    fitting = [
        game
        for secret in between(prompt.text[0], prompt.text[2])
        for game in [game_of(GuessingRow(prompt.text[0], prompt.text[2], secret))]
        if all(game.reply(guess.text) == answer.text for guess, answer in zip(guesses, answers, strict=False))
    ]
    rewards = [game.get_reward() for game in fitting if game.reply(guesses[-1].text) is None]
    assert fitting
    assert rewards or len(guesses) == guessing.MAX_DEMONSTRATED_TURNS
    return max(rewards, default=0.0)
