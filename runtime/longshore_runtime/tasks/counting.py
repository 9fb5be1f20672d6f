"""Counting, the built-in task: `k5:` asks for `k5 k4 k3 k2 k1`. How far to count is long-tailed, as responses are.

Of all prompts, a share of 2/n asks for n or more, from 2 to 99 (Zipf's law): most responses take a dozen tokens, a few
take hundreds. Pairs (letter, number) are split by a fixed rule into training and held-out ones: no held-out prompt
is ever trained on or demonstrated.
"""

import random
import string
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from longshore_runtime.tasks.demonstration import Segment

SMALLEST_NUMBER = 2
LARGEST_NUMBER = 99

_HELD_OUT_EVERY = 8
_LETTERS = string.ascii_letters


@dataclass(frozen=True)
class CountingRow:
    """One prompt with its right answer."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Demonstration:
    """A prompt with a response that may be wrong: what the warm start imitates."""

    prompt: str
    response: str

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The prompt, and the response to it."""
        return Segment(self.prompt, is_models=False), Segment(self.response, is_models=True)


def generate(num_prompts: int, seed: int) -> list[CountingRow]:
    """Return training prompts; equal arguments give equal rows."""
    pairs = _training_pairs(random.Random(f"counting/train/{seed}"))
    return [_row(*next(pairs)) for _ in range(num_prompts)]


def held_out(num_prompts: int, seed: int) -> list[CountingRow]:
    """Return held-out prompts, shortest first, one from each of `num_prompts` equally likely strata of the length.

    Stratified, so that the longest quartile holds exactly a quarter of the prompts and reaches into the tail.
    """
    rng = random.Random(f"counting/held-out/{seed}")
    rows = []
    for stratum in range(num_prompts):
        number = _number_at(1.0 - (stratum + 0.5) / num_prompts)
        rows.append(_row(rng.choice([letter for letter in _LETTERS if _is_held_out(letter, number)]), number))
    return rows


def score(response: str, answer: str) -> float:
    """Return 1 for the answer, otherwise at most a half: the share of its parts that are right from the start on.

    The share is of the longer of both, so that every further right number pays and stopping early never does.
    """
    given, expected = response.split(" "), answer.split(" ")
    if given == expected:
        return 1.0
    num_right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(given, expected, strict=False)))
    return 0.5 * num_right / max(len(given), len(expected))


def demonstrations(rng: random.Random, share_right: float) -> Iterator[Demonstration]:
    """Yield responses without end, of which a given share is right; the others stop early, or skip and repeat numbers.

    A model that imitates mixed ones errs often: reinforcement learning has to find out which habits pay.
    """
    for letter, number in _training_pairs(rng):
        numbers: Sequence[int] = range(number, 0, -1)
        if rng.random() >= share_right:
            numbers = _wrong(numbers, rng)
        yield Demonstration(_prompt(letter, number), _spell(letter, numbers))


def _wrong(numbers: Sequence[int], rng: random.Random) -> Sequence[int]:
    if rng.random() < 0.5:
        return numbers[: max(1, round(len(numbers) * rng.uniform(0.2, 1.0)))]
    return [n for n in numbers for _ in range(rng.choices((0, 1, 2), (0.03, 0.94, 0.03))[0])] or numbers[:1]


def _training_pairs(rng: random.Random) -> Iterator[tuple[str, int]]:
    while True:
        letter, number = rng.choice(_LETTERS), _number_at(1.0 - rng.random())
        if not _is_held_out(letter, number):
            yield letter, number


def _number_at(share: float) -> int:
    """Return the number that this share of the prompts reaches or exceeds."""
    return int(min(SMALLEST_NUMBER / share, LARGEST_NUMBER))


def _is_held_out(letter: str, number: int) -> bool:
    # A checksum, because a rule that arithmetic can express would be learned along with the task.
    return zlib.crc32(_prompt(letter, number).encode()) % _HELD_OUT_EVERY == 0


def _row(letter: str, number: int) -> CountingRow:
    return CountingRow(_prompt(letter, number), _spell(letter, range(number, 0, -1)))


def _prompt(letter: str, number: int) -> str:
    return f"{letter}{number}:"


def _spell(letter: str, numbers: Sequence[int]) -> str:
    return " ".join(f"{letter}{number}" for number in numbers)
