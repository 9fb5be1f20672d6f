"""verl's configuration (Hydra)."""

from typing import Final

from longshore_cli.convert.mapping import System
from longshore_cli.convert.verl.algorithm import ENTRIES as ALGORITHM
from longshore_cli.convert.verl.ignored import IGNORED
from longshore_cli.convert.verl.parts import ENTRIES as PARTS

_ALWAYS: Final = {"spec.data.answerField": "reward_model.ground_truth", "spec.rollout.strategy": "Synchronous"}
VERL: Final = System("verl", "0.9.1", (*PARTS, *ALGORITHM), IGNORED, _ALWAYS)
