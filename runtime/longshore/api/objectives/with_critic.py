"""Base of objectives with a critic."""

from typing import Final

from pydantic import Field

from longshore.api.base import RelativePath
from longshore.api.objectives.advantages import Estimator
from longshore.api.objectives.objective import ClippedObjective

AT: Final = "algorithm.objective.valueModel"
"""Place in the spec that names the model that a critic begins as."""


class ObjectiveWithCritic(ClippedObjective):
    """Base of objectives whose advantages come from the values of a second model."""

    advantage: Estimator = Estimator.GAE
    """Generalised advantage estimation, the only choice here."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount of a reward per token."""
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """Decay per token of what the advantage of a token owes to later ones (GAE). 1: the reward minus the value; less:
    less variance, and more of the errors of the critic."""
    whiten: bool = True
    """Whether advantages are shifted and divided so that over the tokens of a step their mean is 0 and their deviation
    1."""
    value_model: RelativePath | None = None
    """Directory of the Hugging Face checkpoint that the critic begins as, with the tokenizer of the model, as a path
    inside the storage of the job; its output layer is replaced by one value. Unset: the model itself."""
    value_learning_rate: float = Field(default=1e-5, gt=0, le=1)
    """Peak learning rate of the critic; its other settings are those of the policy."""
    value_clip: float = Field(default=0.5, gt=0, le=1_000_000)
    """Distance from the value at the start of the step at which the critic's loss stops to fall (verl's
    `cliprange_value`)."""
