"""GRPO, and DAPO's variant of it."""

from typing import Literal

from pydantic import Field

from longshore.api.objectives.objective import ClippedObjective, NormalisedObjective


class Grpo(NormalisedObjective, ClippedObjective):
    """Group relative policy optimisation: rewards normalised within the group of a prompt, ratios of tokens.

    DeepSeekMath (arXiv 2402.03300), section 4.1. Losses are averaged over all tokens of an update, so a long response
    weighs more than a short one, and not over responses first. The usual choice.
    """

    name: Literal["GRPO"] = "GRPO"


class Dapo(NormalisedObjective, ClippedObjective):
    """GRPO with a wider upper clip, which leaves room for unlikely tokens to become likely.

    DAPO (arXiv 2503.14476), section 3.1. Its other additions are fields that work with every objective:
    `dynamicSampling`, `overlongBufferTokens` and `overlongPenalty`.
    """

    name: Literal["DAPO"] = "DAPO"
    clip_high: float = Field(default=0.28, gt=0, le=1_000)
    """Distance from 1 to the upper clip of the importance ratio (CISPO: to the largest weight)."""
