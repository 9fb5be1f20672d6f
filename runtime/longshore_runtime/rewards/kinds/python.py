"""Rewards by a Python function of the user."""

import importlib
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from longshore_runtime.rewards.kinds.kind import ChildKind


class PythonKind(ChildKind):
    """Calls the function at `importPath`, which may need as much memory as its pod has."""

    limits_memory = False

    def load(self, import_path: str | None) -> Callable[..., float]:
        """Import the function."""
        assert import_path is not None, "validation asks for one"
        function: Callable[..., float] = imported(import_path)
        return function


def imported(import_path: str) -> Any:
    """Return what is at `package.module:name`.

    Raises:
        BaseException: what the import of the module does, or AttributeError if it has no such name.
    """
    path, name = import_path.split(":")
    module = importlib.import_module(path)
    try:
        return getattr(module, name)
    except AttributeError as error:
        near = get_close_matches(name, [known for known, value in vars(module).items() if callable(value)], 1)
        fix = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module {path!r} has no {name!r}{fix}") from error
