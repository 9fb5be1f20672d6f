"""Imports of large libraries, faster."""

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Final

_LARGE: Final = 500
"""Modules; torch alone has twice as many."""


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
