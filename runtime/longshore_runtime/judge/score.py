"""Reads a score out of a judge's reply."""

import math
import re


class ScorePattern:
    """A regular expression with one group, and the range of the number in it."""

    def __init__(self, pattern: str, minimum: float, maximum: float) -> None:
        """Compile the pattern; raises ValueError, one sentence that names the field."""
        try:
            self._expression = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"judge.scorePattern: {pattern!r} is no regular expression ({error})") from error
        if self._expression.groups != 1:
            raise ValueError(
                f"judge.scorePattern: {pattern!r} has {self._expression.groups} groups: "
                "put exactly one around the number, and write (?:...) for others"
            )
        if not (math.isfinite(minimum) and math.isfinite(maximum) and minimum < maximum):
            raise ValueError(f"judge.maxScore: it must be above minScore, and {maximum:g} is not above {minimum:g}")
        self._minimum, self._maximum = minimum, maximum

    def reward(self, reply: str) -> float | None:
        """Return the score of the last match, scaled from its range to 0 to 1; None if there is no score in range.

        The last, because a judge that explains itself ends with its verdict. A score out of range is not clipped: who
        writes 11 of 10 has not understood the question.
        """
        matches = self._expression.findall(reply)
        score = _number(matches[-1]) if matches else math.nan
        if not self._minimum <= score <= self._maximum:
            return None
        return (score - self._minimum) / (self._maximum - self._minimum)

    @property
    def reminder(self) -> str:
        """Text to add to a question whose reply held no score."""
        return (
            "\n\nAn earlier reply to this held no score that could be read. Answer again, shortly. The reply must end "
            f"with a match of the regular expression {self._expression.pattern} "
            f"whose number lies between {self._minimum:g} and {self._maximum:g}."
        )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
