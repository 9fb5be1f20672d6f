"""Which system a configuration is of."""

import re
from collections.abc import Mapping
from typing import Any, Final

from longshore.api import names
from longshore_cli.convert.mapping import System
from longshore_cli.convert.trl import TRL
from longshore_cli.convert.verl import VERL
from longshore_cli.simulate.errors import BadInput

SYSTEMS: Final = {"verl": VERL, "trl": TRL}
_MAX_UNKNOWN: Final = 0.75
"""A share of keys; other systems have a few keys in common with these."""
_NAMED: Final = ("trainer.experiment_name", "run_name", "output_dir")


def system_of(given: Mapping[str, Any], origin: str | None = None) -> System:
    """Return the one that is named, or else: keys of verl have sections, those of TRL have none.

    Raises:
        BadInput: most keys are those of neither.
    """
    if origin is not None:
        return SYSTEMS[origin]
    num_sections = sum("." in key for key in given)
    system = VERL if 2 * num_sections >= len(given) else TRL
    unknown = [key for key in given if not system.knows(key)]
    if len(unknown) > _MAX_UNKNOWN * len(given):
        raise BadInput(
            f"These settings are neither verl's nor TRL's: {system.name} does not know {', '.join(unknown[:3])}.",
            "Name the system with --from if they are.",
        )
    return system


def job_name(given: Mapping[str, Any]) -> str:
    """Return a name that Kubernetes takes, made of that of the experiment."""
    texts = [str(given[key]) for key in _NAMED if given.get(key)]
    wanted = next((text for text in texts if "${" not in text), "converted")
    name = re.sub(r"[^a-z0-9]+", "-", wanted.rstrip("/").rpartition("/")[2].lower()).strip("-")
    name = f"run-{name}" if name[:1].isdigit() else name
    return name[: names.MAX_JOB_NAME_LENGTH].strip("-") or "converted"
