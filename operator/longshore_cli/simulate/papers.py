"""`--paper`: compare predictions with the figures of papers."""

import json
from collections.abc import Iterator
from typing import Any, Final

import yaml
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from longshore.sim.paper.comparison import FigureRow, PaperComparison, Prediction, compare
from longshore.sim.paper.published import PUBLISHED_FILE, FigureRole, Paper, Published, Unit
from longshore_cli import format as fmt

GOAL: Final = 0.15
"""Relative error of a figure that counts as met."""
_UNITS: Final = {
    Unit.RATIO: "{}x",
    Unit.SECONDS: "{} s",
    Unit.TOKENS: "{} tokens",
    Unit.PERCENT: "{} %",
    Unit.PERCENT_MORE: "{} % more",
    Unit.PERCENT_LESS: "{} % less",
}
_SECTIONS: Final = (FigureRole.HELD_OUT, FigureRole.BASELINE, FigureRole.NOT_MODELLED)


def comparison(paper: Paper) -> PaperComparison:
    """Compare with a paper, calibrated on its baselines; takes a minute or two."""
    return compare(paper, Published.of_rows(yaml.safe_load(PUBLISHED_FILE.read_text(encoding="utf-8"))))


def as_json(found: PaperComparison) -> str:
    """Return the comparison as JSON with stable keys."""
    content: dict[str, Any] = {
        "paper": found.paper,
        "constants": [
            {"name": one.name, "value": one.value, "unit": one.unit, "calibratedOn": one.calibrated_on}
            for one in found.constants
        ],
        "rows": [row.to_json() for row in found.rows],
    }
    return json.dumps(content, indent=2)


def show(found: PaperComparison, console: Console) -> None:
    """Print held-out figures first, then what the constants were found from, then the constants."""
    console.print(rows_table(found))
    if found.constants:
        console.print(constants_table(found))
    for sentence in sentences(found):
        console.print(sentence, markup=False, soft_wrap=True)


def rows_table(found: PaperComparison) -> Table:
    """Return a table of predicted and published figures, by what they are for."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    drawn.add_column("figure", overflow="fold")
    drawn.add_column("role", no_wrap=True)
    for name in ("predicted", "published", "error"):
        drawn.add_column(name, justify="right", no_wrap=True)
    for role in _SECTIONS:
        rows = [row for row in found.rows if row.role is role]
        for index, row in enumerate(rows, start=1):
            drawn.add_row(*(Text(cell) for cell in cells(row)), end_section=index == len(rows))
    return drawn


def cells(row: FigureRow) -> tuple[str, ...]:
    """Return a figure without the name of its paper."""
    name = row.figure.split("/", maxsplit=1)[1] + (f" ({row.variant})" if row.variant else "")
    error = "" if row.error is None else f"{100 * row.error:+.1f} %"
    if row.follows_from is not None:
        error = f"({error})"
    predicted = "" if row.predicted is None else _written(row.predicted, row.unit)
    return name, row.role.replace("_", " "), predicted, _written(row.published, row.unit), error


def constants_table(found: PaperComparison) -> Table:
    """Free constants and what they were found from."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    drawn.add_column("constant")
    drawn.add_column("value", justify="right", no_wrap=True)
    drawn.add_column("found from")
    for constant in found.constants:
        value = f"{_number(constant.value)} {constant.unit}"
        drawn.add_row(*(Text(cell) for cell in (constant.name, value, constant.calibrated_on)))
    return drawn


def sentences(found: PaperComparison) -> Iterator[str]:
    """Yield how good it is, and where the sources are."""
    num_scored = len(found.scored)
    yield (
        f"{found.num_within(GOAL)} of {fmt.count(num_scored, 'scored figure')} within {100 * GOAL:.0f} %; "
        f"median error {fmt.share(found.median_error)}; {fmt.count(len(found.constants), 'free constant')}, "
        "held-out figures unseen."
    )
    yield f"A model in which nothing has any effect would meet {found.num_null_within(GOAL)} of them."
    if num_following := len(found.held_out) - num_scored:
        yield f"{fmt.count(num_following, 'further held-out figure')} in brackets, since others determine them."
    yield "--json names section or table of every figure."


def _written(value: Prediction, unit: Unit) -> str:
    ends = value if isinstance(value, tuple) else (value,)
    return _UNITS[unit].format(" to ".join(_number(end) for end in ends))


def _number(value: float) -> str:
    """Format a number with three digits, and without an exponent if it is large."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
