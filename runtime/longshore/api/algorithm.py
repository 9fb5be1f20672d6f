"""What is optimised: the objective, the batch that one step trains on, and the optimizer."""

from enum import StrEnum

from pydantic import Field

from longshore.api.base import ApiModel, cel


class AlgorithmName(StrEnum):
    """Policy-gradient objective."""

    GRPO = "GRPO"


class Algorithm(ApiModel):
    """Objective and batch. Loss is the mean over all loss-mask tokens of the step (global token count)."""

    model_config = {
        "json_schema_extra": cel(
            (
                "self.clipHigh >= self.clipLow",
                "clipHigh must be at least clipLow: raise clipHigh or lower clipLow",
                ".clipHigh",
            ),
        )
    }

    name: AlgorithmName = AlgorithmName.GRPO
    """Objective: GRPO (DeepSeekMath, section 4.1): advantages normalised within the group of a prompt."""
    steps: int = Field(ge=1, le=10_000_000)
    """Optimizer steps to train."""
    prompts_per_step: int = Field(ge=1, le=65_536)
    """P0: prompts that one step trains on."""
    responses_per_prompt: int = Field(ge=2, le=4_096)
    """R0: responses per prompt that one step trains on; at least 2, since advantages compare them."""
    max_response_tokens: int = Field(ge=1, le=10_000_000)
    """A response is cut here."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature of training rollouts."""
    learning_rate: float = Field(default=1e-6, gt=0, le=1)
    """Peak learning rate of AdamW."""
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Steps over which the learning rate rises linearly."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """AdamW weight decay."""
    max_grad_norm: float = Field(default=1.0, gt=0, le=1e6)
    """Gradients are clipped to this global norm."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip of the importance ratio: 1 - clipLow."""
    clip_high: float = Field(default=0.2, gt=0, le=10)
    """Upper clip of the importance ratio: 1 + clipHigh (0.28 is DAPO's clip-higher)."""
    kl_coefficient: float = Field(default=0.0, ge=0, le=100)
    """Weight of the KL penalty towards the initial model, estimated with k3; 0 turns it off."""
    advantage_epsilon: float = Field(default=1e-6, gt=0, le=1)
    """Added to the (unbiased) standard deviation of a group; a group without spread gives exactly 0."""
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seeds prompt order, sampling and initialisation."""
