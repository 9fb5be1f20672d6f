"""Truncated PPO."""

from typing import Literal

from longshore.api.objectives.with_critic import ObjectiveWithCritic


class Tppo(ObjectiveWithCritic):
    """PPO that learns from a response while it is still being sampled, from some of its tokens after each round.

    T-PPO (arXiv 2506.15050), with strategy PartialRollout. The policy is trained once on every token: after the round
    that sampled it, where that cut the response off, and otherwise with the reward. Advantages of a response that was
    cut off end with the value of its last state, as if it stayed what it is (extended GAE). The critic is trained on
    all tokens of responses that have ended, with the discounted reward. A step makes one update, of everything.
    """

    name: Literal["TPPO"] = "TPPO"

    @property
    def trains_unfinished(self) -> bool:
        """Return True."""
        return True
