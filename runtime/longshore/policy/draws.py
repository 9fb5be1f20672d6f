"""Draws: which prompt is used when. Each use is a (epoch, index), so that one prompt in two epochs stays distinct."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, order=True)
class Draw:
    """One use of a prompt in one epoch; `index` is its row."""

    epoch: int
    index: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.index}"


class DrawCursor:
    """Endless sequence of draws: every epoch goes once through all prompts, in an order of its own."""

    def __init__(self, num_prompts: int, seed: int) -> None:
        if num_prompts < 1:
            raise ValueError("the data has no prompt to train on")
        self._num_prompts = num_prompts
        self._seed = seed
        self._epoch = 0
        self._offset = 0
        self._order = self._shuffled(0)

    def take(self, count: int) -> tuple[Draw, ...]:
        """The next draws."""
        return tuple(self._next() for _ in range(count))

    def export_state(self) -> dict[str, int]:
        """Position, to be stored in a checkpoint."""
        return {
            "epoch": self._epoch,
            "offset": self._offset,
            "num_prompts": self._num_prompts,
            "seed": self._seed,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `export_state` was called."""
        if state["num_prompts"] != self._num_prompts:
            raise ValueError(
                f"data: it has {self._num_prompts} prompts now and had {state['num_prompts']} when the checkpoint "
                "was written; restore the data or start a new job"
            )
        if state["seed"] != self._seed:
            raise ValueError(
                f"algorithm.seed: it is {self._seed} now and was {state['seed']} when the checkpoint was written, "
                "which changes the order of the prompts; restore it or start a new job"
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

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(self._num_prompts))
        random.Random(f"{self._seed}/{epoch}").shuffle(order)
        return order
