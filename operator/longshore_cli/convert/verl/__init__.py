"""verl's configuration (Hydra)."""

from typing import Final

from longshore_cli.convert.mapping import System
from longshore_cli.convert.verl import correction, distillation, engines, objective, optimizer, progress, task, trainer
from longshore_cli.convert.verl.ignored import IGNORED

_ALWAYS: Final = {"spec.data.answerField": "reward_model.ground_truth", "spec.rollout.strategy": "Synchronous"}
_PARTS: Final = (task, engines, trainer, progress, objective, distillation, optimizer, correction)
_HALF_SWITCHED: Final = frozenset({"reward_model"})
"""Older versions have the reward manager in the section of the reward model."""
VERL: Final = System(
    "verl", "0.9.1", [entry for part in _PARTS for entry in part.ENTRIES], IGNORED, _ALWAYS, _HALF_SWITCHED
)
