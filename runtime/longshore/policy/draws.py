"""Draws: which prompt is used when. Each use is a (epoch, index), so that one prompt in two epochs stays distinct."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple


class Draw(NamedTuple):
    """One use of a prompt in one epoch. A tuple, since it is the key of most dictionaries.

    `index` is the place of the prompt among the prompts of the round; `PromptRecord.row` is its row of the data.
    """

    epoch: int
    index: int  # type: ignore[assignment]  # Hides the search of tuples, which nobody needs here.

    def __str__(self) -> str:
        return f"{self.epoch}-{self.index}"


class DrawCursor:
    """Endless sequence of draws: every epoch goes once through all prompts, in an order of its own."""

    def __init__(self, num_prompts: int, seed: int | str) -> None:
        if num_prompts < 1:
            raise ValueError("the data has no prompt to train on")
        self._num_prompts = num_prompts
        self._seed = seed
        self._epoch = 0
        self._offset = 0
        self._order = self._shuffled(0)

    def take(self, count: int) -> tuple[Draw, ...]:
        """Return the next draws."""
        return tuple(self._next() for _ in range(count))

    def skip(self, count: int) -> None:
        """Move to where taking `count` draws from the beginning leads."""
        self._epoch, self._offset = divmod(count, self._num_prompts)
        self._order = self._shuffled(self._epoch)

    def export_state(self) -> dict[str, Any]:
        """Return the position, to be stored in a checkpoint."""
        return {
            "epoch": self._epoch,
            "offset": self._offset,
            "num_prompts": self._num_prompts,
            "seed": self._seed,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `export_state` was called."""
        if state.get("num_prompts") != self._num_prompts:
            raise ValueError(
                f"data: it has {self._num_prompts} prompts now and had {state.get('num_prompts')} when the checkpoint "
                "was written; restore data and data.heldOutPrompts, or start a new job with another storage.output"
            )
        if state["seed"] != self._seed:
            raise ValueError(
                f"algorithm.seed: it is {self._seed} now and was {state['seed']} when the checkpoint was written, "
                "which changes the order of the prompts; restore it, or start a new job with another storage.output"
            )
        self._epoch, self._offset = state["epoch"], state["offset"]
        self._order = self._shuffled(self._epoch)

    def _next(self) -> Draw:
        if self._offset == self._num_prompts:
            self._epoch, self._offset = self._epoch + 1, 0
            self._order = self._shuffled(self._epoch)
        draw = Draw(self._epoch, self._order[self._offset])
        self._offset += 1
        return draw

    def _shuffled(self, epoch: int) -> Sequence[int]:
        return _order(self._seed, epoch, self._num_prompts)


# Simulations of strategies begin with the same epochs. Not more of them: an epoch may have millions of prompts.
@lru_cache(maxsize=2)
def _order(seed: int | str, epoch: int, num_prompts: int) -> Sequence[int]:
    order = list(range(num_prompts))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return tuple(order)


@dataclass(frozen=True)
class Share:
    """One of several data sets: how many prompts it has, and how many of the draws are to be its own."""

    name: str
    num_prompts: int
    weight: float
    """Relative to the other weights."""


class MixedDraws(DrawCursor):
    """Draws of several data sets in the proportions of their weights, each with epochs of its own.

    The prompts of a data set follow those of the one before, so indices tell the sets apart. The next draw is always of
    the set that is furthest behind its share. So where each set is follows from how many draws it has given, and that
    is all there is to store.
    """

    def __init__(self, shares: Sequence[Share], seed: int) -> None:
        total = sum(share.weight for share in shares)
        self._shares = tuple(shares)
        self._mixed_seed = seed
        self._targets = [share.weight / total for share in shares]
        self._firsts = [sum(share.num_prompts for share in shares[:place]) for place in range(len(shares))]
        self._start([0] * len(shares))

    def export_state(self) -> dict[str, Any]:
        """Return draws so far of every data set, to be stored in a checkpoint."""
        return {"taken": dict(zip(self._names, self._taken, strict=True)), "mix": self._mix()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `export_state` was called."""
        before, now = state.get("mix"), self._mix()
        if before != now:
            raise ValueError(
                f"data.sources: their prompts, weights and seed are {now} now and were {before} when the checkpoint "
                "was written, which changes the order of the prompts; restore them, or start a new job with "
                "another storage.output"
            )
        self._start([state["taken"][name] for name in self._names])

    @property
    def _names(self) -> list[str]:
        return [share.name for share in self._shares]

    def _mix(self) -> dict[str, Any]:
        """Return what the order of the draws follows from, as JSON keeps it."""
        sets = {share.name: [share.num_prompts, share.weight] for share in self._shares}
        return {"sets": sets, "seed": self._mixed_seed}

    def _start(self, taken: list[int]) -> None:
        self._taken = taken
        self._cursors = [DrawCursor(share.num_prompts, f"{self._mixed_seed}/{share.name}") for share in self._shares]
        for cursor, count in zip(self._cursors, taken, strict=True):
            cursor.skip(count)

    def _next(self) -> Draw:
        num_draws = sum(self._taken) + 1
        place = max(range(len(self._shares)), key=lambda one: self._targets[one] * num_draws - self._taken[one])
        self._taken[place] += 1
        (draw,) = self._cursors[place].take(1)
        return Draw(draw.epoch, self._firsts[place] + draw.index)
