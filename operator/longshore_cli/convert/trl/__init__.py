"""TRL's GRPOConfig, and the further arguments of its script and trainer."""

from typing import Final

from longshore_cli.convert.mapping import System
from longshore_cli.convert.trl.algorithm import ENTRIES as ALGORITHM
from longshore_cli.convert.trl.ignored import IGNORED
from longshore_cli.convert.trl.parts import ENTRIES as PARTS

_ALWAYS: Final = {"spec.algorithm.advantageEpsilon": 1e-4, "spec.rollout.strategy": "Synchronous"}
TRL: Final = System("TRL", "1.16.0", (*PARTS, *ALGORITHM), IGNORED, _ALWAYS)
