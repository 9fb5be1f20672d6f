"""TRL's GRPOConfig, and the further arguments of its script and trainer."""

from typing import Final

from longshore_cli.convert.mapping import System
from longshore_cli.convert.trl import correction, engines, environments, objective, optimizer, progress, refused, task
from longshore_cli.convert.trl.ignored import IGNORED

_ALWAYS: Final = {"spec.rollout.strategy": "Synchronous"}
_PARTS: Final = (task, environments, engines, progress, objective, optimizer, correction, refused)
TRL: Final = System("TRL", "1.16.0", [entry for part in _PARTS for entry in part.ENTRIES], IGNORED, _ALWAYS)
