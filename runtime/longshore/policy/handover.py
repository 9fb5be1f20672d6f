"""Handover of groups to the trainer: after the round, or in FIFO order while it still runs (RolloutPipe, section 3.2).

Either way an optimizer step takes U groups, and the steps are those of the serial baseline over the same groups in the
same order; the rollout weights change only after the round.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from longshore.policy.draws import Draw

MAX_TOKENS_PER_REPLICA: Final = 131_072
"""Largest number of tokens per replica in a batch of a pipelined handover, in whole groups; a larger group goes alone
(B in RolloutPipe)."""


@dataclass(frozen=True)
class TrainableGroup:
    """A group with its rewards, as the handover sees it."""

    draw: Draw
    num_tokens: int
    """Tokens of all its samples, prompts included: the cost of its forward and backward pass."""


@dataclass(frozen=True)
class Batch:
    """Groups for one pass of the trainer; gradients add up until `ends_update`."""

    draws: tuple[Draw, ...]
    ends_update: bool


class HandoverQueue:
    """First in, first out: every U groups make one optimizer step, given to the trainer in feasible batches."""

    def __init__(self, update_sizes: Sequence[int], max_tokens_per_batch: int) -> None:
        """Take `update_sizes`, U of each update in turn; the last one holds for all further updates."""
        assert update_sizes and min(update_sizes) >= 1
        self._sizes = deque(update_sizes)
        self._max_tokens_per_batch = max_tokens_per_batch
        self._pending: deque[TrainableGroup] = deque()

    def add(self, group: TrainableGroup) -> tuple[Batch, ...]:
        """Add a group that is ready, and return what the trainer gets now: nothing until U groups are there."""
        self._pending.append(group)
        if len(self._pending) < self._sizes[0]:
            return ()
        return self._update()

    def round_ended(self) -> tuple[Batch, ...]:
        """Return the last update, which may have fewer groups (P0 that U does not divide, or a draining round)."""
        return self._update() if self._pending else ()

    def _update(self) -> tuple[Batch, ...]:
        size = self._sizes.popleft() if len(self._sizes) > 1 else self._sizes[0]
        groups = [self._pending.popleft() for _ in range(min(size, len(self._pending)))]
        batches: list[Batch] = []
        while groups:
            count = feasible_prefix([group.num_tokens for group in groups], self._max_tokens_per_batch)
            draws, groups = tuple(group.draw for group in groups[:count]), groups[count:]
            batches.append(Batch(draws, ends_update=not groups))
        return tuple(batches)


def feasible_prefix(num_tokens: Sequence[int], budget: int) -> int:
    """Return how many groups from the front fit the token budget; one that exceeds it is taken alone.

    Source: RolloutPipe, section 4.
    """
    total = count = 0
    for tokens in num_tokens:
        total += tokens
        if total > budget and count:
            break
        count += 1
    return count
