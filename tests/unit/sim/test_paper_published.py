"""published.yaml: complete, well-formed, and blind where calibration is concerned."""

from collections import Counter
from itertools import pairwise, product
from typing import Any

import pytest
import yaml

from longshore.sim.paper import april, reorder, rolloutpipe
from longshore.sim.paper.comparison import constants_of
from longshore.sim.paper.published import PUBLISHED_FILE, FigureRole, Paper, Published, Unit
from longshore.sim.paper.rollpacker import RollPackerConstants

ROWS: list[dict[str, Any]] = yaml.safe_load(PUBLISHED_FILE.read_text())
PUBLISHED = Published.of_rows(ROWS)
LISTED = {
    Paper.ROLLPACKER: RollPackerConstants().listed(),
    Paper.APRIL: april.AprilConstants().listed(),
    Paper.REORDER: reorder.calibrate(PUBLISHED.baselines()).listed(),
    Paper.ROLLOUTPIPE: rolloutpipe.RolloutPipeConstants().listed(),
}


def perturbed() -> Published:
    """Every figure that is not a baseline is something else."""
    changed = {"value", "low", "high"}
    return Published.of_rows(
        [
            row if row["role"] == "baseline" else {k: 3.7 * v if k in changed else v for k, v in row.items()}
            for row in ROWS
        ]
    )


@pytest.mark.parametrize(
    ("prefix", "count"),
    [
        ("rollpacker/table1/", 9),
        ("rollpacker/3/", 1),
        ("rollpacker/4.2/", 5),
        ("rollpacker/4.3/", 3),
        ("rollpacker/table2/", 24),
        ("rollpacker/table3/", 10),
        ("rollpacker/table4/", 9),
        ("rollpacker/6.1/", 8),
        ("rollpacker/6.3/", 3),
        ("rollpacker/6.4/", 3),
        ("rollpacker/6.5/", 6),
        ("rollpacker/6.2/", 1),
        ("rollpacker/6.6/", 3),
        ("rollpacker/6.7/", 5),
        ("april/3.2.1/", 12),
        ("reorder/bound/", 6),
        ("rolloutpipe/2.1/", 2),
        ("rolloutpipe/table1/", 36),
        ("rolloutpipe/5.2/dispatch/", 3),
        ("rolloutpipe/5.2/main/", 3),
        ("rolloutpipe/5.2/seconds/", 2),
        ("rolloutpipe/5.3/waiting/", 6),
    ],
)
def test_every_figure_of_a_table_or_section_is_listed(prefix: str, count: int) -> None:
    assert sum(figure.id.startswith(prefix) for figure in PUBLISHED.figures) == count


def test_the_papers_own_table_2_is_listed() -> None:
    by_id = {figure.id: figure.value for figure in PUBLISHED.figures}
    assert by_id["rollpacker/table2/tail_batching/14B"] == 1.48
    assert by_id["rollpacker/table2/reward/14B"] == 1.99
    assert by_id["rollpacker/table2/parallelism/7B"] == 2.01


def test_what_is_added_is_the_quotient_of_two_rows_of_table_2() -> None:
    by_id = {figure.id: figure.value for figure in PUBLISHED.figures}
    rows = ("tail_batching", "reward", "parallelism", "trainer")
    for (above, below), model in product(pairwise(rows), ("7B", "14B", "32B")):
        of_above, of_below = (by_id[f"rollpacker/table2/{row}/{model}"] for row in (above, below))
        assert of_above is not None and of_below is not None
        added = by_id[f"rollpacker/table2/increment/{below}/{model}"]
        assert added == pytest.approx(of_below / of_above, abs=0.001)


def test_every_scored_figure_has_a_null_model() -> None:
    assert all(figure.null is not None for figure in PUBLISHED.figures if figure.is_scored)


def test_figures_that_are_stated_twice_are_scored_once() -> None:
    scored = {figure.id for figure in PUBLISHED.figures if figure.is_scored}
    assert {"rollpacker/6.1/verl/7B", "rollpacker/table3/20/speedup", "rolloutpipe/5.2/main/32"} <= scored
    assert not {"rollpacker/table2/trainer/7B", "rollpacker/table3/20/step", "rolloutpipe/5.2/main/all"} & scored


def test_every_figure_names_the_section_or_table_that_prints_it() -> None:
    for figure in PUBLISHED.figures:
        assert figure.source.startswith(("Table ", "Section ", "Abstract, ", "Theoretical benefit analysis, "))


def test_percentages_of_a_time_split_add_up() -> None:
    shares: Counter[str] = Counter()
    for figure in PUBLISHED.of(Paper.ROLLPACKER):
        if figure.id.startswith("rollpacker/table1/"):
            shares[figure.id.rsplit("/", 1)[0]] += round(figure.middle)
    assert set(shares.values()) == {100}


@pytest.mark.parametrize("paper", Paper)
def test_there_are_fewer_free_constants_than_figures_held_out(paper: Paper) -> None:
    assert len(LISTED[paper]) < len(PUBLISHED.of(paper, FigureRole.HELD_OUT))
    assert all(constant.calibrated_on for constant in LISTED[paper])


def test_a_calibration_gets_baselines_and_nothing_else() -> None:
    baselines = PUBLISHED.baselines()
    assert perturbed().baselines() == baselines
    assert {figure.role for figure in baselines.figures.values()} == {FigureRole.BASELINE}
    with pytest.raises(KeyError):
        baselines["rollpacker/6.1/verl/7B"]


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


def test_a_figure_is_listed_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        Published.of_rows([ROWS[0], ROWS[0]])


def test_increases_and_decreases_are_factors() -> None:
    assert Unit.PERCENT_MORE.factor(44) == pytest.approx(1.44)
    assert Unit.PERCENT_LESS.factor(40) == pytest.approx(0.6)
    assert Unit.PERCENT.factor(40) == 40
