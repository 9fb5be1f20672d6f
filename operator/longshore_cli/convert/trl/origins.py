"""Python objects that a configuration of TRL names: where a job imports them from, and how they get there."""

import keyword
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

MADE: Final = " (made by the program)"
"""What follows an object of a script that nothing can be imported for, such as a class inside a function."""
READS_ENVIRONMENTS: Final = "(environments)"
"""What follows a reward function of a script that wants the environments of the episodes."""


@dataclass(frozen=True)
class Origin:
    """A module, and an object in it."""

    name: str
    module: str
    file: str = ""
    """Script that has the object; empty for a module."""

    @property
    def import_path(self) -> str:
        """Path as the fields of an RLJob take it."""
        return f"{self.module}:{self.name}"


def origin(text: str, module: str) -> Origin:
    """Return the object that `module.name`, `module:name`, `FILE.py:name` or a name alone is; `module` has the last."""
    file, is_in_file, name = text.rpartition(".py:")
    if is_in_file:
        return Origin(name, _module_of(file), f"{file}.py")
    known, _, name = text.replace(":", ".").rpartition(".")
    return Origin(name, known or module)


def _module_of(file: str) -> str:
    """Return the name that a script has as a module."""
    name = re.sub(r"\W", "_", PurePosixPath(file).name, flags=re.ASCII)
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"rewards_{name}"


def to_do(origins: Sequence[Origin]) -> list[str]:
    """Return what is left to do before a job can import objects: a sentence for each module."""
    by_module: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in origins:
        by_module[one.module, one.file].append(one.name)
    return [_submit(module, file, " and ".join(dict.fromkeys(names))) for (module, file), names in by_module.items()]


def _submit(module: str, file: str, names: str) -> str:
    if file:
        submitted = f"{module}.py"
        if PurePosixPath(file).name != submitted:
            return (
                f"Copy {names} and what it needs from {file} into {submitted}, and submit the job with "
                f"`--with {submitted}`."
            )
        return (
            f"Submit the job with `--with {file}`, which has {names}. Move it into a file of its own if importing the "
            "script trains or needs TRL, and change the path in the job."
        )
    if "." in module:
        package = module.partition(".")[0]
        return (
            f"Set spec.image to an image that has the package {package}, for {module}:{names}; `--with` submits single "
            "files."
        )
    return f"Submit the job with `--with {module}.py`, which has {names}."


def label(name: str) -> str:
    """Return a name in the form that an RLJob takes: `GuessingGame` and `guessing_game` are `guessing-game`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
    return re.sub(r"[^a-z0-9]+", "-", words)[:63].strip("-")
