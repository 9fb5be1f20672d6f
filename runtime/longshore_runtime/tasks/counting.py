"""Counting, the built-in task: `17-54:` asks for `17 18 … 54`. How far to count is long-tailed, as responses are.

The number of numbers is 1 + a lognormal, cut at 99, so that most responses take a dozen tokens and a few take
hundreds. Pairs (first, last) are split by a fixed rule into training and held-out ones: no held-out prompt is
ever trained on or demonstrated.
"""

import math
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from statistics import NormalDist

LARGEST_NUMBER = 99

_COUNT_MEDIAN = 2.5
_COUNT_SIGMA = 1.3
_HELD_OUT_EVERY = 8
_EXACT_BONUS = 0.5


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


def generate(num_prompts: int, seed: int) -> list[CountingRow]:
    """Training prompts; equal arguments give equal rows."""
    rng = random.Random(f"counting/train/{seed}")
    pairs = _training_pairs(rng)
    return [_row(*next(pairs)) for _ in range(num_prompts)]


def held_out(num_prompts: int, seed: int) -> list[CountingRow]:
    """Held-out prompts, shortest first, one from each of `num_prompts` equally likely strata of the length.

    Stratified, so that the longest quartile holds exactly a quarter of the prompts and reaches into the tail.
    """
    rng = random.Random(f"counting/held-out/{seed}")
    rows = []
    for stratum in range(num_prompts):
        count = _count_at(NormalDist().inv_cdf((stratum + 0.5) / num_prompts))
        while not (firsts := [f for f in _firsts(count) if _is_held_out(f, f + count - 1)]):
            count -= 1  # Only the very longest counts have no held-out pair.
        first = rng.choice(firsts)
        rows.append(_row(first, first + count - 1))
    return rows


def score(response: str, answer: str) -> float:
    """1 for the answer, otherwise at most a half: the share of numbers that are right from the start on.

    The share is of the longer of both, so that every further right number pays and stopping early never does.
    """
    given, expected = response.split(" "), answer.split(" ")
    if given == expected:
        return 1.0
    num_right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(given, expected, strict=False)))
    return (1.0 - _EXACT_BONUS) * num_right / max(len(given), len(expected))


def demonstrations(rng: random.Random, share_right: float) -> Iterator[Demonstration]:
    """Endless responses, of which so many are right; the others stop at a wrong number or skip numbers.

    A model that imitates mixed ones errs often: reinforcement learning has to find out which habits pay.
    """
    for first, last in _training_pairs(rng):
        right = rng.random() < share_right
        numbers = list(range(first, last + 1)) if right else _wrong(first, last, rng)
        yield Demonstration(_prompt(first, last), _spell(numbers))


def _wrong(first: int, last: int, rng: random.Random) -> list[int]:
    if rng.random() < 0.5:
        wrong_count = max(1, round((last - first + 1) * rng.uniform(0.4, 1.6)))
        return list(range(first, min(first + wrong_count - 1, LARGEST_NUMBER) + 1))
    return [n for n in range(first, last + 1) if rng.random() > 0.12] or [first]


def _training_pairs(rng: random.Random) -> Iterator[tuple[int, int]]:
    while True:
        count = _count_at(rng.gauss(0.0, 1.0))
        first = rng.choice(_firsts(count))
        if not _is_held_out(first, first + count - 1):
            yield first, first + count - 1


def _count_at(normal_deviate: float) -> int:
    """Count at so many standard deviations of its logarithm."""
    return min(1 + int(_COUNT_MEDIAN * math.exp(_COUNT_SIGMA * normal_deviate)), LARGEST_NUMBER)


def _firsts(count: int) -> range:
    return range(1, LARGEST_NUMBER - count + 2)


def _is_held_out(first: int, last: int) -> bool:
    # A checksum, because a rule that arithmetic can express would be learned along with the task.
    return zlib.crc32(_prompt(first, last).encode()) % _HELD_OUT_EVERY == 0


def _row(first: int, last: int) -> CountingRow:
    return CountingRow(_prompt(first, last), _spell(range(first, last + 1)))


def _prompt(first: int, last: int) -> str:
    return f"{first}-{last}:"


def _spell(numbers: "range | list[int]") -> str:
    return " ".join(map(str, numbers))
