"""How differences between the probabilities that sampled tokens and those of the trainer are corrected."""

from enum import StrEnum

from pydantic import Field

from longshore.api.base import ApiModel
from longshore.api.rules import Rule


class RolloutIs(StrEnum):
    """What has one importance-sampling weight, by verl's names."""

    NONE = "None"
    TOKEN = "Token"
    SEQUENCE = "Sequence"


class RolloutRs(StrEnum):
    """What is rejected together, and by which ratio, by verl's names."""

    NONE = "None"
    TOKEN = "Token"
    SEQUENCE = "Sequence"
    GEOMETRIC = "Geometric"


_RULES: "tuple[Rule[RolloutCorrection], ...]" = (
    Rule(
        "rolloutRsThresholdLower",
        "self.rolloutRsThresholdLower < self.rolloutRsThreshold",
        lambda correction: correction.rollout_rs_threshold_lower < correction.rollout_rs_threshold,
        "rolloutRsThresholdLower must be below rolloutRsThreshold: lower it or raise rolloutRsThreshold",
    ),
)


class RolloutCorrection(ApiModel, rules=_RULES):
    """Decoupled rollout correction: the ratio that is clipped compares with the trainer's own log-probabilities at the
    start of the step, and losses are weighted by what these are to the log-probabilities that sampled (verl's
    `algorithm.rollout_correction`). The defaults are those of TRL's `vllm_importance_sampling_correction`."""

    rollout_is: RolloutIs = RolloutIs.SEQUENCE
    """Weight of a loss. Token: the token's own ratio; Sequence: the product of the ratios of its response; None: 1."""
    rollout_is_threshold: float = Field(default=3.0, gt=0, le=1e6)
    """Larger weights are cut down to this one (truncated importance sampling)."""
    rollout_rs: RolloutRs = RolloutRs.SEQUENCE
    """Losses whose ratio is out of bounds get weight 0 (masked importance sampling). Token: by the token's ratio;
    Sequence: whole responses, by the product of their tokens' ratios; Geometric: by the geometric mean; None: none."""
    rollout_rs_threshold: float = Field(default=3.0, gt=0, le=1e6)
    """Upper bound of the ratio."""
    rollout_rs_threshold_lower: float = Field(default=0.0, ge=0, le=1e6)
    """Lower bound; 0: none."""
