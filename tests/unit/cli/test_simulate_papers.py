"""`longshore simulate --paper`: predicted against published."""

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from longshore.sim.paper.calibration import Constant
from longshore.sim.paper.comparison import FigureRow, PaperComparison
from longshore.sim.paper.published import FigureRole, Paper, Unit
from longshore_cli.simulate import papers
from tests.unit.cli.simulated import refusal, run

_ROW_KEYS = {
    "figure",
    "variant",
    "source",
    "unit",
    "role",
    "predicted",
    "published",
    "error",
    "nullError",
    "followsFrom",
}


def test_json_has_rows_with_sources_and_the_constants() -> None:
    result = run("--paper", "reorder", "--json")
    found = json.loads(result.stdout)
    assert found.keys() == {"paper", "constants", "rows"}
    assert found["paper"] == "reorder"
    for row in found["rows"]:
        assert row.keys() == _ROW_KEYS
        assert row["source"]
    assert all(one.keys() == {"name", "value", "unit", "calibratedOn"} for one in found["constants"])


def row(**changes: Any) -> FigureRow:
    figure = FigureRow(
        "april/3.2.1/gain", "section 3.2.1", Unit.PERCENT_MORE, FigureRole.HELD_OUT, (20.0, 44.0), 50.0, "rest"
    )
    return replace(figure, **changes)


def test_rows_say_how_a_figure_reads_and_where_nothing_is_predicted() -> None:
    assert papers.cells(row()) == ("3.2.1/gain (rest)", "held out", "50 % more", "20 to 44 % more", "+4.2 %")
    fact = row(unit=Unit.SECONDS, role=FigureRole.NOT_MODELLED, published=12_000.0, predicted=None, variant="")
    assert papers.cells(fact) == ("3.2.1/gain", "not modelled", "", "12,000 s", "")


def test_the_table_ends_with_how_many_held_out_figures_are_met_and_what_was_fitted() -> None:
    constants = (Constant("overhead of a step", 0.008, "s", "Table 3, baseline"),)
    follows = row(variant="", follows_from="the figure above")
    fact = row(role=FigureRole.BASELINE, figure="april/3.1/fact")
    rows = (row(variant="", null=(0.0, 0.0)), row(variant="", predicted=180.0, null=(30.0, 30.0)), follows, fact)
    console = Console(width=100, file=io.StringIO(), record=True)
    papers.show(PaperComparison(Paper.APRIL, constants, rows), console)
    shown = console.export_text()
    assert shown.index("3.2.1/gain") < shown.index("3.1/fact") < shown.index("overhead of a step")
    assert "Table 3, baseline" in shown
    assert "1 of 2 scored figures within 15 %; median error 49.3 %; 1 free constant" in shown
    assert "A model in which nothing has any effect would meet 1 of them." in shown
    assert "1 further held-out figure in brackets" in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--paper", "verl"), "--paper: 'verl' is not known; choose one of rollpacker, april, reorder, rolloutpipe"),
        (("job.yaml", "--paper", "april"), "besides it only --json has a meaning"),
        (("--paper", "april", "--strict-only"), "besides it only --json has a meaning"),
        (("--paper", "april", "--steps", "3"), "besides it only --json has a meaning"),
    ],
)
def test_a_comparison_takes_a_known_paper_and_nothing_else(arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in refusal(*arguments)
