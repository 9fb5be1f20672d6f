"""Lengths of the papers' workloads, and figures of theirs that calibrations use."""

from statistics import fmean, pstdev, pvariance, variance
from typing import Final

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.sim.lengths import LengthModel, LognormalLengths
from longshore.sim.paper.calibration import solve
from longshore.sim.paper.published import Baselines

_NUM_PROMPTS: Final = 500
_NUM_RESPONSES: Final = 8


def sampled_tokens(lengths: LengthModel) -> list[list[int]]:
    """Lengths of many groups."""
    return [
        [lengths.response_tokens(ResponseId(Draw(0, prompt), index)) for index in range(_NUM_RESPONSES)]
        for prompt in range(_NUM_PROMPTS)
    ]


def mean_tokens(lengths: LengthModel) -> float:
    """Mean of all responses."""
    return fmean(tokens for group in sampled_tokens(lengths) for tokens in group)


def deviation_tokens(lengths: LengthModel) -> float:
    """Standard deviation over all responses."""
    return pstdev(tokens for group in sampled_tokens(lengths) for tokens in group)


def share_within_prompts(lengths: LengthModel) -> float:
    """Share of the variance of lengths that lies within prompts."""
    groups = sampled_tokens(lengths)
    return fmean(variance(group) for group in groups) / pvariance([tokens for group in groups for tokens in group])


def prompt_share(baselines: Baselines, median: float, sigma: float, max_tokens: int, objective: str = "GRPO") -> float:
    """Share of the variance of the log length that belongs to the prompt.

    From the deviations that APRIL gives (section 3.2.3), the only paper that does.
    """
    within, over = (baselines[f"april/3.2.3/{name}"] for name in (f"group_sigma/{objective}", "batch_sigma"))

    def share_across(share: float) -> float:
        return 1 - share_within_prompts(LognormalLengths(median, sigma, max_tokens, prompt_share=share))

    return solve(share_across, 1 - (within / over) ** 2, 0.02, 0.98)
