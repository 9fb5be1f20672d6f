"""published.yaml: complete, well-formed, and blind where calibration is concerned."""

from typing import Any

import pytest
import yaml

from longshore.sim.paper.comparison import constants_of
from longshore.sim.paper.published import PUBLISHED_FILE, Paper, Published

ROWS: list[dict[str, Any]] = yaml.safe_load(PUBLISHED_FILE.read_text())
PUBLISHED = Published.of_rows(ROWS)


def perturbed() -> Published:
    """Every figure that is not a baseline is something else."""
    changed = {"value", "low", "high"}
    return Published.of_rows(
        [
            row if row["role"] == "baseline" else {k: 3.7 * v if k in changed else v for k, v in row.items()}
            for row in ROWS
        ]
    )


@pytest.mark.parametrize("paper", [Paper.APRIL, Paper.REORDER])
def test_constants_do_not_depend_on_what_is_held_out(paper: Paper) -> None:
    assert constants_of(paper, perturbed()) == constants_of(paper, PUBLISHED)


def test_constants_do_depend_on_baselines() -> None:
    rows = [row | {"value": 1000} if row["id"] == "april/3.2.3/group_sigma/GRPO" else row for row in ROWS]
    assert constants_of(Paper.APRIL, Published.of_rows(rows)) != constants_of(Paper.APRIL, PUBLISHED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": None}, "either value, or low and high"),
        ({"low": 1}, "either value, or low and high"),
        ({"value": None, "low": 2, "high": 1}, "low exceeds high"),
        ({"why": "because"}, "only those"),
        ({"source": "?"}, "at least 12"),
        ({"role": "baseline", "follows_from": "Table 2"}, "describe figures that are held out"),
        ({"role": "baseline", "no_effect": 1.0}, "describe figures that are held out"),
        ({"id": "nobody/1"}, "pattern"),
    ],
)
def test_malformed_figures_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Published.of_rows([ROWS[0] | change])
