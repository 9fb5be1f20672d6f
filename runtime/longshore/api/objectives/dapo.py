"""DAPO's variant of GRPO."""

from typing import Literal

from pydantic import Field

from longshore.api.objectives.objective import ClippedObjective


class Dapo(ClippedObjective):
    """GRPO with a wider upper clip, which leaves room for unlikely tokens to become likely.

    DAPO (arXiv 2503.14476), section 3.1. Its other additions are fields that work with every objective:
    `dynamicSampling`, `overlongBufferTokens` and `overlongPenalty`.
    """

    name: Literal["DAPO"] = "DAPO"
    clip_high: float = Field(default=0.28, gt=0, le=1_000)
