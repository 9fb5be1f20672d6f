"""Guessing, the built-in task with turns: `d-t?` asks for a secret letter, and each guess is told where it is.

The environment answers `<` if the secret comes before the guess, and `>` if it comes after it. An episode ends with
the secret, or when the job allows no further turn:

    d-t?  l  <  g  >  i

Luck aside, nobody wins in one turn, because the prompt says nothing of the secret: a policy has to use the answers.
Binary search finds every secret within `par` guesses, which is worth 1; each further guess halves the reward. Ranges
are split by a fixed rule into training and held-out ones: no held-out prompt is ever trained on or demonstrated.
"""

import random
import string
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Final

from longshore_runtime.tasks.demonstration import Segment

SMALLEST_SIZE: Final = 8
"""Smallest number of letters in a range; the largest one is the alphabet."""
MAX_DEMONSTRATED_TURNS: Final = 8
"""Number of guesses after which a demonstration ends without the secret."""

_HELD_OUT_EVERY: Final = 8
_LETTERS: Final = string.ascii_lowercase


@dataclass(frozen=True)
class GuessingRow:
    """A range that the prompt names, and the secret letter in it."""

    low: str
    high: str
    secret: str

    @property
    def prompt(self) -> str:
        """Text that asks for the secret."""
        return f"{self.low}-{self.high}?"

    @property
    def answer(self) -> str:
        """The secret."""
        return self.secret


@dataclass(frozen=True)
class GuessingDemonstration:
    """A whole episode, played well or badly."""

    segments: tuple[Segment, ...]


class Guessing:
    """Environment of one episode."""

    def reset(self, low: str, high: str, secret: str, **_: object) -> None:
        """Begin an episode, whose prompt says already what the model may know; other fields of a row do not matter."""
        self._secret = secret
        self._par = par(low, high)
        self._num_guesses = 0
        self._is_found = False

    def reply(self, message: str) -> str | None:
        """Return the answer to a guess: `<`, `>`, `?` for anything but a letter, or None for the secret."""
        self._num_guesses += 1
        if message == self._secret:
            self._is_found = True
            return None
        if len(message) != 1 or message not in _LETTERS:
            return "?"
        return "<" if self._secret < message else ">"

    def get_reward(self) -> float:
        """Return 1 for a secret that was found within par, half for each guess more, and 0 if it was not found."""
        return 0.5 ** max(0, self._num_guesses - self._par) if self._is_found else 0.0


def par(low: str, high: str) -> int:
    """Return the number of guesses within which binary search finds every secret of a range."""
    return len(_between(low, high)).bit_length()


def generate(num_prompts: int, seed: int) -> list[GuessingRow]:
    """Return training rows; equal arguments give equal rows."""
    rng = random.Random(f"guessing/train/{seed}")
    return [_draw(rng, is_held_out=False) for _ in range(num_prompts)]


def held_out(num_prompts: int, seed: int) -> list[GuessingRow]:
    """Return rows with held-out ranges."""
    rng = random.Random(f"guessing/held-out/{seed}")
    return [_draw(rng, is_held_out=True) for _ in range(num_prompts)]


def demonstrations(rng: random.Random, share_right: float) -> Iterator[GuessingDemonstration]:
    """Yield episodes without end, of which a given share is binary search; the others have bad habits.

    A model that imitates mixed ones errs often: reinforcement learning has to find out which habits pay.
    """
    while True:
        row = _draw(rng, is_held_out=False)
        player = _halve if rng.random() < share_right else rng.choice((_step, _forget))
        yield _play(row, player, rng)


Player = Callable[[str, str, random.Random], str]
"""Function that guesses, given all letters of the range, and those that the answers leave."""


def _halve(letters: str, left: str, rng: random.Random) -> str:
    return left[(len(left) - 1) // 2]


def _step(letters: str, left: str, rng: random.Random) -> str:
    return left[0]


def _forget(letters: str, left: str, rng: random.Random) -> str:
    return rng.choice(letters)


def _play(row: GuessingRow, player: Player, rng: random.Random) -> GuessingDemonstration:
    game = Guessing()
    game.reset(row.low, row.high, row.secret)
    letters = left = _between(row.low, row.high)
    segments = [Segment(row.prompt, is_models=False)]
    for turn in range(MAX_DEMONSTRATED_TURNS):
        guess = player(letters, left, rng)
        segments.append(Segment(guess, is_models=True))
        answer = game.reply(guess)
        if answer is None or turn == MAX_DEMONSTRATED_TURNS - 1:
            break
        segments.append(Segment(answer, is_models=False))
        left = "".join(letter for letter in left if (letter < guess) is (answer == "<") and letter != guess)
    return GuessingDemonstration(tuple(segments))


def _draw(rng: random.Random, *, is_held_out: bool) -> GuessingRow:
    low, high = rng.choice(_ranges(is_held_out=is_held_out))
    return GuessingRow(low, high, rng.choice(_between(low, high)))


@cache
def _ranges(*, is_held_out: bool) -> tuple[tuple[str, str], ...]:
    return tuple(
        (low, high)
        for low, high in combinations(_LETTERS, 2)
        if len(_between(low, high)) >= SMALLEST_SIZE and _is_held_out(low, high) is is_held_out
    )


def _is_held_out(low: str, high: str) -> bool:
    # A checksum, because a rule that arithmetic can express would be learned along with the task.
    return zlib.crc32(f"{low}-{high}?".encode()) % _HELD_OUT_EVERY == 0


def _between(low: str, high: str) -> str:
    return _LETTERS[_LETTERS.index(low) : _LETTERS.index(high) + 1]
