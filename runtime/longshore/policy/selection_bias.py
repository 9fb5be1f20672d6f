"""What racing selects for. Keeping the first R0 of eta R0 responses favours the short ones of each prompt; keeping the
first P0 prompts only changes their order. So the bias within prompts is measured: accepted responses against all that
were started, by difficulty.

A response that was cut off counts with the tokens that it had: it would have been at least as long, so the true bias is
at least the one that is reported.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

NUM_DIFFICULTIES: Final = 4
"""Prompts by the mean reward of their accepted responses, from the hardest quarter of the scale to the easiest."""


@dataclass(frozen=True)
class StartedGroup:
    """A group that was accepted, with everything that was started for it."""

    rewards: Sequence[float]
    """Of the accepted responses."""
    accepted_tokens: Sequence[int]
    """Lengths of the accepted responses."""
    other_tokens: Sequence[int]
    """What the responses that were not accepted had reached when they ended or were cut off."""


@dataclass(frozen=True)
class Selected:
    """Groups of alike difficulty."""

    num_groups: int = 0
    mean_reward: float = 0.0
    accepted_tokens: float = 0.0
    """Mean length of accepted responses."""
    started_tokens: float = 0.0
    """Mean length of all started responses; cut-off ones count with what they had."""

    @property
    def length_ratio(self) -> float:
        """Accepted over started: 1 without bias, below 1 where short responses won."""
        return self.accepted_tokens / self.started_tokens if self.started_tokens else 1.0


@dataclass(frozen=True)
class SelectionBias:
    """One entry per difficulty, and all groups together."""

    overall: Selected
    by_difficulty: tuple[Selected, ...]


def selection_bias(groups: Iterable[StartedGroup], *, max_reward: float = 1.0) -> SelectionBias:
    """Compare accepted with started responses; rewards are taken to lie between 0 and `max_reward`."""
    everything = list(groups)
    bins: list[list[StartedGroup]] = [[] for _ in range(NUM_DIFFICULTIES)]
    for group in everything:
        share = fmean(group.rewards) / max_reward
        bins[min(NUM_DIFFICULTIES - 1, max(0, int(share * NUM_DIFFICULTIES)))].append(group)
    return SelectionBias(_selected(everything), tuple(_selected(one) for one in bins))


def _selected(groups: Sequence[StartedGroup]) -> Selected:
    if not groups:
        return Selected()
    accepted = [tokens for group in groups for tokens in group.accepted_tokens]
    others = [tokens for group in groups for tokens in group.other_tokens]
    return Selected(
        num_groups=len(groups),
        mean_reward=fmean(reward for group in groups for reward in group.rewards),
        accepted_tokens=fmean(accepted),
        started_tokens=fmean(accepted + others),
    )
