"""A score is read from the last match, scaled to 0..1, and never guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_runtime.judge.score import ScorePattern

PATTERN = r"Score:\s*(-?\d+(?:\.\d+)?)"


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("Score: 10", 1.0),
        ("Score: 0", 0.0),
        ("It is fine.\nScore:  7.5", 0.75),
        ("I would have said Score: 2, but the proof holds. Score: 9", 0.9),
    ],
)
def test_the_last_match_counts_and_is_scaled(reply: str, reward: float) -> None:
    assert ScorePattern(PATTERN, 0, 10).reward(reply) == pytest.approx(reward)


@pytest.mark.parametrize("reply", ["", "good", "Score: ten", "Score: 11", "Score: -1", "Score: 8 ... Score: 800"])
def test_a_reply_without_a_score_in_range_has_no_reward(reply: str) -> None:
    assert ScorePattern(PATTERN, 0, 10).reward(reply) is None


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "", "one"])
def test_what_is_no_finite_number_has_no_reward(text: str) -> None:
    assert ScorePattern("<(.*)>", -1, 1).reward(f"<{text}>") is None


def test_a_group_that_takes_no_part_in_the_match_has_no_reward() -> None:
    assert ScorePattern(r"verdict(?:: (\d))?", 0, 5).reward("verdict") is None


@given(st.floats(-100, 100), st.floats(0.01, 100), st.floats(0, 1))
def test_any_range_becomes_0_to_1(minimum: float, width: float, share: float) -> None:
    pattern = ScorePattern(r"<(.+)>", minimum, minimum + width)
    score = min(max(minimum + share * width, minimum), minimum + width)
    reward = pattern.reward(f"<{score!r}>")
    assert reward == pytest.approx(share, abs=1e-9)
    assert reward is not None and 0 <= reward <= 1


@pytest.mark.parametrize(
    ("pattern", "minimum", "maximum", "sentence"),
    [
        ("(", 0, 10, r"^judge.scorePattern: '\(' is no regular expression"),
        (r"Score: \d+", 0, 10, r"^judge.scorePattern: .* has 0 groups: put exactly one around the number"),
        (r"(Score|Grade): (\d+)", 0, 10, r"^judge.scorePattern: .* has 2 groups"),
        (PATTERN, 10, 10, r"^judge.maxScore: it must be above minScore, and 10 is not above 10"),
        (PATTERN, 5, 1, r"^judge.maxScore: .* 1 is not above 5"),
        (PATTERN, 0, float("inf"), r"^judge.maxScore"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_sentence(
    pattern: str, minimum: float, maximum: float, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        ScorePattern(pattern, minimum, maximum)
