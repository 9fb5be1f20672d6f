"""How differences between the probabilities that sampled tokens and those of the trainer are corrected."""

from enum import StrEnum
from typing import Final

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


_RULES: Final = (
    Rule(
        "rolloutRsThresholdLower",
        "self.rolloutRsThresholdLower < self.rolloutRsThreshold",
        "rolloutRsThresholdLower must be below rolloutRsThreshold: lower it or raise rolloutRsThreshold",
    ),
)


class RolloutCorrection(ApiModel, rules=_RULES):
    """Decoupled correction of the rollout, as in verl's `algorithm.rollout_correction`.

    The clipped ratio compares with the trainer's own log-probabilities at the start of the step, and losses are
    weighted by the ratio of these to the log-probabilities of the engines. The defaults are those of TRL's
    `vllm_importance_sampling_correction`.
    """

    rollout_is: RolloutIs = RolloutIs.SEQUENCE
    """What weighs a loss. Token: the ratio of its token. Sequence: the product of the ratios of its response. None:
    nothing."""
    rollout_is_threshold: float = Field(default=3.0, gt=0, le=1e6)
    """Largest weight; larger ones are truncated to it."""
    rollout_rs: RolloutRs = RolloutRs.SEQUENCE
    """Whose ratio must lie within the bounds for a loss to count. Token: that of its token. Sequence: the product over
    its response. Geometric: the geometric mean over its response. None: every loss counts."""
    rollout_rs_threshold: float = Field(default=3.0, gt=0, le=1e6)
    """Upper bound of the ratio for `rolloutRs`."""
    rollout_rs_threshold_lower: float = Field(default=0.0, ge=0, le=1e6)
    """Lower bound of the ratio for `rolloutRs`."""
