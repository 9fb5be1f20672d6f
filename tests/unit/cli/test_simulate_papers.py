"""`longshore simulate --paper`: predicted against published."""

import json
from dataclasses import replace
from typing import Any

import pytest

from longshore.sim.paper.comparison import FigureRow
from longshore.sim.paper.published import FigureRole, Unit
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
