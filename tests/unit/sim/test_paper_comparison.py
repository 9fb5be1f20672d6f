"""Predictions against published figures."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from statistics import fmean

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from longshore.policy.round_policy import BatchShape
from longshore.sim.paper import april, rolloutpipe, rollpacker_figures
from longshore.sim.paper.calibration import solve
from longshore.sim.paper.comparison import VARIANT, FigureRow, PaperComparison, Prediction, compare
from longshore.sim.paper.published import PUBLISHED_FILE, FigureRole, Paper, Published, Unit
from longshore.sim.paper.rollpacker import RollPackerConstants

PUBLISHED = Published.of_rows(yaml.safe_load(PUBLISHED_FILE.read_text()))
BASELINES = PUBLISHED.baselines()


@cache
def compared(paper: Paper) -> PaperComparison:
    return compare(paper, PUBLISHED)


def row(published: Prediction, predicted: Prediction | None, unit: Unit = Unit.RATIO) -> FigureRow:
    return FigureRow("reorder/x", "Section 1, of something", unit, FigureRole.HELD_OUT, published, predicted)


LONG = [pytest.param(paper, marks=pytest.mark.soak) for paper in (Paper.ROLLPACKER, Paper.APRIL, Paper.ROLLOUTPIPE)]


@pytest.mark.parametrize("paper", [Paper.REORDER, *LONG])
def test_every_held_out_figure_is_predicted(paper: Paper) -> None:
    comparison = compared(paper)
    held_out = {figure.id for figure in PUBLISHED.of(comparison.paper, FigureRole.HELD_OUT)}
    assert {row.figure for row in comparison.held_out} == held_out
    assert all(row.error is not None for row in comparison.held_out)
    assert all(row.source for row in comparison.rows)


@cache
def predicted_in_short(paper: Paper) -> Mapping[str, Prediction]:
    """From fewer steps than a full comparison takes."""
    match paper:
        case Paper.ROLLPACKER:
            small, constants = BatchShape(num_prompts=8, num_responses=8), RollPackerConstants(prompt_share=0.9)
            return rollpacker_figures.predict(constants, shape=small, num_steps=5, num_seeds=1)
        case Paper.APRIL:
            return april.predict(april.calibrate(BASELINES), num_steps=5, num_seeds=1)
        case _:
            return rolloutpipe.predict(pipe(), num_rounds=1)


@cache
def pipe() -> rolloutpipe.RolloutPipeConstants:
    return rolloutpipe.calibrate(BASELINES, num_rounds=1)


@pytest.mark.parametrize("paper", [Paper.ROLLPACKER, Paper.APRIL, Paper.ROLLOUTPIPE])
def test_every_figure_of_a_paper_that_is_modelled_is_predicted(paper: Paper) -> None:
    predicted = {name.split(VARIANT)[0] for name in predicted_in_short(paper)}
    of_paper = {figure.id: figure.role for figure in PUBLISHED.of(paper)}
    assert predicted <= of_paper.keys()
    held_out = {name for name, role in of_paper.items() if role is FigureRole.HELD_OUT}
    assert held_out <= predicted_in_short(paper).keys(), "another reading of a figure does not stand in for it"
    assert not any(of_paper[name] is FigureRole.NOT_MODELLED for name in predicted)


def test_calibrated_constants_of_rolloutpipe_meet_its_baselines() -> None:
    slime = [rolloutpipe.cell(pipe(), "slime", 96, seed, num_rounds=1) for seed in range(len(rolloutpipe.WORKLOADS))]
    dispatch_s = BASELINES["rolloutpipe/5.2/dispatch/slime"]
    assert fmean(cell.first_dispatch_s for cell in slime) == pytest.approx(dispatch_s, rel=0.006)
    trainer_s = fmean(BASELINES[f"rolloutpipe/table1/{name}/96/slime"] for name in rolloutpipe.WORKLOADS)
    assert fmean(cell.trainer_compute_s for cell in slime) == pytest.approx(trainer_s, rel=0.05)


def test_the_same_figures_give_the_same_comparison() -> None:
    assert compare(Paper.REORDER, PUBLISHED) == compared(Paper.REORDER)


def test_the_reorder_policy_reaches_the_recipes_bound() -> None:
    comparison = compared(Paper.REORDER)
    assert all(abs(row.error or 0) < 0.01 for row in comparison.held_out)
    assert comparison.num_within(0.01) == len(comparison.scored)


def test_figures_that_follow_from_others_are_shown_and_not_scored() -> None:
    rows = (row(2.0, 2.1), replace(row(2.0, 2.1), follows_from="the figure above"), row(2.0, 9.0))
    comparison = PaperComparison(Paper.REORDER, (), rows)
    assert len(comparison.held_out) == 3
    assert len(comparison.scored) == 2
    assert comparison.num_within(0.15) == 1


def test_a_model_in_which_nothing_has_any_effect_is_scored_alike() -> None:
    null = (1.0, 1.0)
    rows = tuple(replace(row(published, 9.0), null=null) for published in (1.1, 1.3, (0.9, 1.1), (0.9, 1.3)))
    assert [each.null_error for each in rows] == pytest.approx([1 / 1.1 - 1, 1 / 1.3 - 1, 1 / 0.9 - 1, 1 / 1.3 - 1])
    assert PaperComparison(Paper.REORDER, (), rows).num_null_within(0.15) == 2


def test_the_trainers_work_is_the_same_with_every_system_of_rolloutpipe() -> None:
    of_table = [one for one in PUBLISHED.of(Paper.ROLLOUTPIPE, FigureRole.HELD_OUT) if "/table1/" in one.id]
    assert len(of_table) == 24
    assert all(one.follows_from for one in of_table)


def test_one_setting_holds_for_every_cell_of_april() -> None:
    by_figure = predicted_in_short(Paper.APRIL)
    for model, objective in product(april.MODEL_NAMES, april.OBJECTIVES):
        assert len({by_figure[f"april/3.2.1/{model}/{objective}/{data}"] for data in april.DATASETS}) == 1


def test_json_rows_have_figure_source_predicted_and_published() -> None:
    of_range = row((1.0, 2.0), (1.1, 2.5)).to_json()
    assert of_range["figure"] == "reorder/x"
    assert of_range["source"] == "Section 1, of something"
    assert (of_range["published"], of_range["predicted"]) == ([1.0, 2.0], [1.1, 2.5])
    assert row(1.0, None).to_json()["error"] is None


@pytest.mark.parametrize(
    ("published", "predicted", "unit", "error"),
    [
        (2.0, 2.2, Unit.RATIO, 0.1),
        (44.0, 8.0, Unit.PERCENT_MORE, 1.08 / 1.44 - 1),
        (40.0, 10.0, Unit.PERCENT_LESS, 0.9 / 0.6 - 1),
        ((10.0, 20.0), 15.0, Unit.SECONDS, 0.0),
        ((10.0, 20.0), 5.0, Unit.SECONDS, -0.5),
        ((10.0, 20.0), (11.0, 16.0), Unit.SECONDS, -0.2),
        ((10.0, 20.0), (11.0, 18.0), Unit.SECONDS, 0.1),
    ],
)
def test_errors_are_relative(published: Prediction, predicted: Prediction, unit: Unit, error: float) -> None:
    assert row(published, predicted, unit).error == pytest.approx(error)


@given(st.floats(0.1, 5), st.floats(0.5, 3), st.just(0.0) | st.floats(0.01, 10))
def test_solving_meets_the_target_or_stops_at_an_end(slope: float, power: float, target: float) -> None:
    root = solve(lambda x: slope * x**power, target, 0.0, 2.0)
    if target >= slope * 2.0**power:
        assert root == 2.0
    else:
        assert slope * root**power == pytest.approx(target, rel=0.006, abs=1e-6)
