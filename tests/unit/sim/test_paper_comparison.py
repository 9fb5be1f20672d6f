"""Predictions against published figures."""

from collections.abc import Mapping
from functools import cache
from itertools import product
from statistics import fmean

import pytest
import yaml

from longshore.policy.round_policy import BatchShape
from longshore.sim.paper import april, rolloutpipe, rollpacker_figures
from longshore.sim.paper.comparison import FigureRow, PaperComparison, Prediction, compare
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


def test_calibrated_constants_of_rolloutpipe_meet_its_baselines() -> None:
    slime = [rolloutpipe.cell(pipe(), "slime", 96, seed, num_rounds=1) for seed in range(len(rolloutpipe.WORKLOADS))]
    dispatch_s = BASELINES["rolloutpipe/5.2/dispatch/slime"]
    assert fmean(cell.first_dispatch_s for cell in slime) == pytest.approx(dispatch_s, rel=0.006)
    trainer_s = fmean(BASELINES[f"rolloutpipe/table1/{name}/96/slime"] for name in rolloutpipe.WORKLOADS)
    assert fmean(cell.trainer_compute_s for cell in slime) == pytest.approx(trainer_s, rel=0.05)


@pytest.mark.soak
def test_the_same_figures_give_the_same_comparison() -> None:
    assert compare(Paper.REORDER, PUBLISHED) == compared(Paper.REORDER)


def test_the_reorder_policy_reaches_the_recipes_bound() -> None:
    comparison = compared(Paper.REORDER)
    assert all(abs(row.error or 0) < 0.01 for row in comparison.held_out)
    assert comparison.num_within(0.01) == len(comparison.scored)


def test_the_trainers_work_is_the_same_with_every_system_of_rolloutpipe() -> None:
    of_table = [one for one in PUBLISHED.of(Paper.ROLLOUTPIPE, FigureRole.HELD_OUT) if "/table1/" in one.id]
    assert len(of_table) == 24
    assert all(one.follows_from for one in of_table)


def test_one_setting_holds_for_every_cell_of_april() -> None:
    by_figure = predicted_in_short(Paper.APRIL)
    for model, objective in product(april.MODEL_NAMES, april.OBJECTIVES):
        assert len({by_figure[f"april/3.2.1/{model}/{objective}/{data}"] for data in april.DATASETS}) == 1
