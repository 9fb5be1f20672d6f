"""How many examples a property is tried on: few in every run, many before a release (`make soak`)."""

import os
from typing import Final

DEEP: Final = os.environ.get("HYPOTHESIS_PROFILE") == "deep"


def examples(num: int) -> int:
    """Examples of a property in this run; `num`: those of an ordinary run."""
    return num * 25 if DEEP else num
