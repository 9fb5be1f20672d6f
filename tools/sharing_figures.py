"""The table of `explanation/sharing-groups.md`, from the simulation itself."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import yaml

from longshore.sim.paper import rollpacker
from longshore.sim.paper.published import PUBLISHED_FILE, Published
from longshore.sim.paper.sharing import MixRow, compare_mixes
from tools.marked import replace

PAGE: Final = Path(__file__).parents[1] / "docs" / "explanation" / "sharing-groups.md"
_HEAD: Final = (
    "| jobs, and GPUs of each | limit | GPUs without sharing | GPUs shared | groups | largest slowdown "
    "| jobs per GPU hour | fewer GPUs instead |\n|---|---|---|---|---|---|---|---|\n"
)


def sharing_table() -> None:
    """Simulate all mixes and write the table; takes a few minutes."""
    published = Published.of_rows(yaml.safe_load(PUBLISHED_FILE.read_text(encoding="utf-8")))
    write(compare_mixes(rollpacker.calibrate(published.baselines())))


def write(rows: Iterable[MixRow]) -> None:
    """Replace the table of the page."""
    replace(PAGE, "mixes", _HEAD + "".join(map(_row, rows)))


def _row(row: MixRow) -> str:
    result = row.result
    return (
        f"| {row.mix.described} | {row.mix.max_slowdown:g} | {result.num_gpus_alone} | {result.num_gpus} "
        f"| {result.num_groups} | {result.max_slowdown:.2f} | {result.gain:.2f} × | {row.fewer_gpus_gain:.2f} × |\n"
    )
