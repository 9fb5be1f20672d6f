"""Sums over the tokens of an update, from which the metrics of a step are computed."""

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CorrectionSums:
    """Sums of rollout correction over loss-mask tokens.

    Ratios are those of trainer to engine at the step's start.
    """

    num_tokens: int = 0
    num_responses: int = 0
    kl: float = 0.0
    """Sum of log-probability rollout - trainer, whose mean estimates KL(rollout || trainer)."""
    k3_kl: float = 0.0
    """Sum of the estimate of the same KL that is never negative (k3)."""
    weight: float = 0.0
    """Sum of ratios, per token, before they are cut."""
    bounded: float = 0.0
    """Sum of ratios kept within [1 / threshold, threshold]."""
    bounded_squared: float = 0.0
    weight_max: float = 0.0
    """Largest ratio (a maximum, not a sum)."""
    weight_min: float = math.inf
    """Smallest ratio (a minimum)."""
    num_compared: int = 0
    """Number of tokens, or of responses, that have a ratio."""
    high: int = 0
    """Number of compared tokens or responses above the threshold."""
    low: int = 0
    """Number of compared tokens or responses below the reciprocal of the threshold."""
    num_rejected_tokens: int = 0
    num_rejected_responses: int = 0
    """Number of responses of which something was rejected."""

    def __add__(self, other: "CorrectionSums") -> "CorrectionSums":
        """Return the sums over two disjoint sets of samples."""
        added = {name: value + getattr(other, name) for name, value in vars(self).items()}
        extremes = {
            "weight_max": max(self.weight_max, other.weight_max),
            "weight_min": min(self.weight_min, other.weight_min),
        }
        return CorrectionSums(**(added | extremes))


@dataclass(frozen=True)
class CriticSums:
    """Sums of a critic over loss-mask tokens."""

    num_tokens: int = 0
    loss: float = 0.0
    clipped: float = 0.0
    """Number of tokens whose loss is that of a clipped value."""

    def __add__(self, other: "CriticSums") -> "CriticSums":
        """Return the sums over two disjoint sets of samples."""
        return CriticSums(**{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True)
class GradientSums:
    """Sums over the loss-mask tokens of the samples of one `accumulate`, to be added over calls and replicas."""

    num_tokens: int = 0
    """Number of all response tokens, in the loss or not."""
    num_loss_tokens: int = 0
    loss: float = 0.0
    """Sum of weighted token losses, which is the loss when the step's denominator divides it; so is `policy_loss`."""
    policy_loss: float = 0.0
    kl: float = 0.0
    ppo_kl: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    """Number of tokens whose ratio, or that of their response, was clipped or truncated."""
    num_compared_tokens: int = 0
    """Number of loss-mask tokens that the round's own weights sampled, at which engine and trainer may be compared."""
    mismatch: float = 0.0
    """Sum of |train - rollout| log-probability over these compared tokens."""
    mismatch_max: float = 0.0
    """Largest |train - rollout| log-probability of these compared tokens (a maximum, not a sum)."""
    correction: CorrectionSums = field(default_factory=CorrectionSums)
    """Sums of the correction, with `rolloutCorrection`."""
    critic: CriticSums = field(default_factory=CriticSums)
    """Sums of the critic, if there is one."""

    @property
    def mean_mismatch(self) -> float | None:
        """Mean of |train - rollout| log-probability; None where no token can be compared."""
        return self.mismatch / self.num_compared_tokens if self.num_compared_tokens else None

    def __add__(self, other: "GradientSums") -> "GradientSums":
        """Return sums of two disjoint sets of samples."""
        added = {name: value + getattr(other, name) for name, value in vars(self).items()}
        return GradientSums(**(added | {"mismatch_max": max(self.mismatch_max, other.mismatch_max)}))
