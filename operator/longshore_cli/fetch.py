"""The checkpoints of a job, as `fetch --list` shows them."""

import re
from collections.abc import Mapping
from typing import Final

from longshore_cli import format as fmt

_PREFIX: Final = "step-"
_NAME: Final = re.compile(rf"{_PREFIX}\d{{1,12}}", re.ASCII)


def checkpoint_lines(sizes: Mapping[str, int]) -> list[str]:
    """Return one line for each checkpoint, newest last; `sizes`: bytes of what the directory of each holds."""
    steps = {int(name.removeprefix(_PREFIX)): num_bytes for name, num_bytes in sizes.items() if _NAME.fullmatch(name)}
    return [f"--checkpoint {step:<8} {fmt.size(num_bytes)}" for step, num_bytes in sorted(steps.items())]
