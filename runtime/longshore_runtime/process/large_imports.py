"""Avoid garbage collections that would look at much and find nothing: in large imports and in the coordinator."""

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Final

_LARGE: Final = 500
"""Number of modules that make an import large; torch alone has twice as many."""


def collect_rarely() -> None:
    """Let garbage collections leave out what is there now, and come rarely: for a process that keeps what it makes.

    A coordinator keeps thousands of responses until the end of a step, and each collection looks at all that are new or
    have survived too few: a third of its time with 100,000 of them (`make bench NAME=data_plane`). References free
    nearly everything; cycles wait for one of the collections that are left.
    """
    # A session before this one may have left cycles, which would stay for ever.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 20)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Import without garbage collections, which would look at all that was imported again and again.

    They take a fifth of the time in which torch and vLLM are imported. Later collections leave out what is there when
    large imports are done: nearly all of it stays for ever, and a look at it takes half a second.
    """
    was_enabled, num_modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > num_modules + _LARGE:
            gc.freeze()
        if was_enabled:
            gc.enable()
