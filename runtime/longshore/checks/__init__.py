"""What can be known of a job before anything starts, from its spec and files: no GPU, no cluster, no heavy imports.

Each check returns mistakes, one sentence each, which names the field and the fix. The coordinator runs them before it
starts engines; `longshore check` runs the same ones on the user's machine.
"""

from collections.abc import Sequence


def summary(mistakes: Sequence[str]) -> str:
    """Return the first of several mistakes, and how many others there are."""
    first, *others = mistakes
    return first + (f" (and {len(others)} more)" if others else "")
