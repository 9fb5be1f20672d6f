"""`longshore trace`: rounds of a job as a file for Perfetto."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

from longshore.record.model import RoundRecord
from longshore.record.perfetto import PerfettoTrace, trace
from longshore_cli import format as fmt
from longshore_cli.errors import CliError

NEWEST = 10
"""Number of newest rounds by default."""


def check_target(path: Path, *, force: bool) -> None:
    """Check that the file can be written, before anything is fetched.

    Raises:
        CliError: the file cannot be written.
    """
    if path.suffixes[-1:] != [".json"] and path.suffixes[-2:] != [".json", ".gz"]:
        raise CliError(f"--out: {path} ends neither in .json nor in .json.gz.")
    if not path.parent.is_dir():
        raise CliError(f"--out: there is no directory {path.parent}.")
    if path.exists() and not force:
        raise CliError(f"{path} exists already.", "Choose another place, or overwrite it with --force.")


def write(job: str, records: Sequence[RoundRecord], path: Path) -> PerfettoTrace:
    """Return the trace of these rounds."""
    made = trace(records)
    content = json.dumps(made.as_json(job), separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(content, compresslevel=6) if path.suffix == ".gz" else content)
    return made


def summary(records: Sequence[RoundRecord], made: PerfettoTrace, path: Path) -> list[str]:
    """Return what to say about a trace."""
    steps = [record.step for record in records]
    rounds = f"round {steps[0]}" if len(steps) == 1 else f"rounds {steps[0]} to {steps[-1]}"
    lines = [f"The trace of {rounds} is in {path}. Open it at https://ui.perfetto.dev, which reads it in the browser."]
    if missing := steps[-1] - steps[0] + 1 - len(steps):
        lines.append(f"{fmt.count(missing, 'round')} between them were not recorded.")
    if made.without_responses:
        left_out = fmt.count(len(made.without_responses), "round")
        lines.append(f"Responses of {left_out} are left out, so that it can be opened: ask for fewer with --rounds.")
    return lines
