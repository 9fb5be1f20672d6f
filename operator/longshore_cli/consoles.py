"""Where commands print."""

import sys

from rich.console import Console


def output() -> Console:
    """Return the console for results."""
    # A pipe has no width: anyone who reads it may search for whole sentences.
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def errors() -> Console:
    """Return the console for errors and progress."""
    return Console(stderr=True, highlight=False)
