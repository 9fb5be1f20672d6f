"""Which system a configuration is of."""

import re
from collections.abc import Mapping
from typing import Any, Final

from longshore.api import names
from longshore_cli.convert.mapping import System
from longshore_cli.convert.trl import TRL
from longshore_cli.convert.verl import VERL

SYSTEMS: Final = {"verl": VERL, "trl": TRL}
_NAMED: Final = ("trainer.experiment_name", "run_name", "output_dir")


def system_of(given: Mapping[str, Any], origin: str | None = None) -> System:
    """Return the one that is named, or else: keys of verl have sections, those of TRL have none."""
    if origin is not None:
        return SYSTEMS[origin]
    num_sections = sum("." in key for key in given)
    return VERL if 2 * num_sections >= len(given) else TRL


def job_name(given: Mapping[str, Any]) -> str:
    """Return a name that Kubernetes takes, made of that of the experiment."""
    texts = [str(given[key]) for key in _NAMED if given.get(key)]
    wanted = next((text for text in texts if "${" not in text), "converted")
    name = re.sub(r"[^a-z0-9]+", "-", wanted.rstrip("/").rpartition("/")[2].lower()).lstrip("-0123456789")
    return name[: names.MAX_JOB_NAME_LENGTH].strip("-") or "converted"
