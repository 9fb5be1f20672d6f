"""What racing selects for: two measures, both of which understate it, because responses are cut off.

Keeping the first R0 of eta R0 responses favours the short ones of each prompt: accepted responses are compared with
all that were started, by difficulty. A response that was cut off counts with the tokens that it had; it would have been
at least as long.

Keeping the first P0 prompts puts a draw off because its responses were long. If they are others when it is sampled
again, long ones are missing: responses are compared with the tokens that they had when they were cut off before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from longshore.policy.round import ResponseId

NUM_DIFFICULTIES: Final = 4
"""Prompts by the mean reward of their accepted responses, from the hardest quarter of the scale to the easiest."""


@dataclass(frozen=True)
class StartedGroup:
    """A group that was accepted, with everything that was started for it."""

    rewards: Sequence[float]
    """Rewards of the accepted responses."""
    accepted_tokens: Sequence[int]
    """Lengths of the accepted responses."""
    other_tokens: Sequence[int]
    """Tokens that the responses that were not accepted had when they ended or were cut off."""


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


@dataclass(frozen=True)
class RewardRange:
    """Range of the rewards of a run: from 0 to 1, and as far beyond as any has been."""

    low: float = 0.0
    high: float = 1.0

    def with_rewards(self, rewards: Iterable[float]) -> "RewardRange":
        """Return the range that holds these as well."""
        seen = (self.low, self.high, *rewards)
        return RewardRange(min(seen), max(seen))


UNIT_RANGE: Final = RewardRange()


def share_shorter_again(cut_tokens: Mapping[ResponseId, int], now_tokens: Mapping[ResponseId, int]) -> float | None:
    """Return the share of responses that were cut off and are now shorter than they were then; None: none was cut off.

    `cut_tokens`: what each had when it was cut off; `now_tokens`: lengths of responses that are accepted now.
    """
    again = [now_tokens[response] < num_tokens for response, num_tokens in cut_tokens.items() if response in now_tokens]
    return fmean(again) if again else None


def selection_bias(groups: Iterable[StartedGroup], rewards: RewardRange = UNIT_RANGE) -> SelectionBias:
    """Compare accepted with started responses; difficulties are quarters of the range of `rewards`."""
    everything = list(groups)
    bins: list[list[StartedGroup]] = [[] for _ in range(NUM_DIFFICULTIES)]
    for group in everything:
        share = (fmean(group.rewards) - rewards.low) / (rewards.high - rewards.low)
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
