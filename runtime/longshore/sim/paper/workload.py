"""Lengths of the papers' workloads, and figures of theirs that calibrations use."""

from dataclasses import dataclass
from statistics import fmean, pstdev, pvariance, variance
from typing import Final

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.sim.lengths import LengthModel, LognormalLengths
from longshore.sim.paper.calibration import Constant, solve
from longshore.sim.paper.published import Baselines

_NUM_PROMPTS: Final = 500
_NUM_RESPONSES: Final = 8


def sampled_tokens(lengths: LengthModel) -> list[list[int]]:
    """Return the lengths of many groups."""
    return [
        [lengths.response_tokens(ResponseId(Draw(0, prompt), index)) for index in range(_NUM_RESPONSES)]
        for prompt in range(_NUM_PROMPTS)
    ]


def mean_tokens(lengths: LengthModel) -> float:
    """Return the mean of all responses."""
    return fmean(tokens for group in sampled_tokens(lengths) for tokens in group)


def deviation_tokens(lengths: LengthModel) -> float:
    """Return the standard deviation over all responses."""
    return pstdev(tokens for group in sampled_tokens(lengths) for tokens in group)


def share_within_prompts(lengths: LengthModel) -> float:
    """Return the share of the variance of lengths that lies within prompts."""
    groups = sampled_tokens(lengths)
    return fmean(variance(group) for group in groups) / pvariance([tokens for group in groups for tokens in group])


def prompt_share(baselines: Baselines, median: float, sigma: float, max_tokens: int, objective: str = "GRPO") -> float:
    """Return the share of the variance of the log length that belongs to the prompt.

    From the deviations that APRIL gives (section 3.2.3), the only paper that does.
    """
    within, over = (baselines[f"april/3.2.3/{name}"] for name in (f"group_sigma/{objective}", "batch_sigma"))

    def share_across(share: float) -> float:
        return 1 - share_within_prompts(LognormalLengths(median, sigma, max_tokens, prompt_share=share))

    return solve(share_across, 1 - (within / over) ** 2, 0.02, 0.98)


@dataclass(frozen=True)
class Qwen3Lengths:
    """Responses of Qwen3-4B and 8B, which think before they answer, to competition mathematics.

    APRIL states their deviations under a limit of 16,384 tokens. RollPacker has the same 8B and the same data
    (DeepMath) under 32,768 in section 4.2, and states nothing of their lengths.
    """

    median_tokens: float = 8000.0
    sigma: float = 0.6
    prompt_share: float = 0.8
    prompt_share_dapo: float = 0.8

    def listed(self) -> tuple[Constant, ...]:
        """Return the constants with what they were found from."""
        found = "deviations within prompts and over batches, APRIL, section 3.2.3"
        return (
            Constant("median length of Qwen3", self.median_tokens, "tokens",
                     "convention: APRIL does not say more than: a few thousand"),
            Constant("deviation of log length of Qwen3", self.sigma, "",
                     "deviation over a batch, APRIL, section 3.2.3"),
            Constant("variance of log length of Qwen3 that belongs to the prompt", self.prompt_share, "share", found),
        )  # fmt: skip

    def under(self, max_tokens: int, seed: int, *, dapo: bool = False) -> LognormalLengths:
        """Cut at a limit; `dapo`: as similar within a prompt as dynamic sampling finds them."""
        share = self.prompt_share_dapo if dapo else self.prompt_share
        return LognormalLengths(self.median_tokens, self.sigma, max_tokens, prompt_share=share, seed=seed)


_APRIL_MAX_TOKENS: Final = 16_384


def qwen3_lengths(baselines: Baselines, median_tokens: float = Qwen3Lengths.median_tokens) -> Qwen3Lengths:
    """Return lengths with the deviations that APRIL gives, and a median."""

    def deviation(sigma: float) -> float:
        return deviation_tokens(Qwen3Lengths(median_tokens, sigma).under(_APRIL_MAX_TOKENS, 0))

    sigma = solve(deviation, baselines["april/3.2.3/batch_sigma"], 0.2, 2.0)
    of_prompt, of_dapo = (
        prompt_share(baselines, median_tokens, sigma, _APRIL_MAX_TOKENS, objective) for objective in ("GRPO", "DAPO")
    )
    return Qwen3Lengths(median_tokens, sigma, of_prompt, of_dapo)
