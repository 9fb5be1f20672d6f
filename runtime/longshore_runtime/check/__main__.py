"""The process of the checks."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from longshore.api.spec import RLJobSpec
from longshore_runtime.check.results import CheckRequest, results


def main() -> None:
    """Read one request from standard input, and write its results to standard output."""
    say = _taken_stdout()
    options: dict[str, Any] = json.load(sys.stdin)
    names = "model", "data", "warm_start_data"
    model, data, supervised = (None if options[name] is None else Path(options[name]) for name in names)
    spec = RLJobSpec.model_validate(options["spec"])
    for result in results(CheckRequest(spec, model, data, frozenset(options["skipped"]), supervised)):
        say(asdict(result))


def _taken_stdout() -> Callable[[dict[str, Any]], None]:
    """Keep standard output for the results; what imported packages print goes to standard error."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        lines.write(json.dumps(message) + "\n")
        lines.flush()

    return say


if __name__ == "__main__":
    main()
