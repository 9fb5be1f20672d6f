"""Sections of verl's configuration, and those of the RLJob that they become."""

from typing import Final

ACTOR: Final = "actor_rollout_ref.actor"
ROLLOUT: Final = "actor_rollout_ref.rollout"
MODEL: Final = "actor_rollout_ref.model"
OPTIM: Final = f"{ACTOR}.optim"
MEGATRON: Final = f"{ACTOR}.megatron"
CORRECTION: Final = "algorithm.rollout_correction"
DISTILLATION_LOSS: Final = "distillation.distillation_loss"
IS_TAUGHT: Final = "distillation.enabled"
USES_REWARDS: Final = f"{DISTILLATION_LOSS}.use_task_rewards"
"""Whether a job that distils learns from rewards as well."""
ALGORITHM: Final = "spec.algorithm"
"""In the RLJob."""
ENGINE: Final = "spec.rollout.engine"
"""In the RLJob."""


def named(section: str, names: str) -> tuple[str, ...]:
    """Return the keys of a section whose names are separated by spaces."""
    return tuple(f"{section}.{name}" for name in names.split())
