"""What tells the systems of the papers apart."""

from dataclasses import replace
from statistics import fmean

import pytest

from longshore.policy.round_policy import BatchShape
from longshore.sim.job import SimJob
from longshore.sim.paper import rolloutpipe, rollpacker, sharing
from longshore.sim.paper.rollpacker import (
    ASYNCHRONOUS,
    RLHFUSE,
    ROLLPACKER,
    SETTINGS,
    TAIL_BATCHING,
    VERL,
    ExperimentVariant,
    RollPackerConstants,
    Task,
)
from longshore.sim.simulate import simulate

SMALL = BatchShape(num_prompts=16, num_responses=8)
CONSTANTS = RollPackerConstants()


def of_rollpacker(variant: ExperimentVariant, constants: RollPackerConstants = CONSTANTS) -> SimJob:
    return rollpacker.job(constants, SETTINGS["7B"], variant, Task.MIXED, 0, shape=SMALL)


@pytest.mark.parametrize(
    ("variant", "decide"),
    [(VERL, False), (TAIL_BATCHING, False), (RLHFUSE, False), (ASYNCHRONOUS, True), (ROLLPACKER, True)],
)
def test_scores_decide_races_where_rollpacker_scores_during_the_round(variant: ExperimentVariant, decide: bool) -> None:
    assert of_rollpacker(variant).rewards.decide_races is decide


def test_scores_decide_no_race_of_longshore() -> None:
    assert not any(mix.variant.scores_decide_races for mix in sharing.MIXES)


def test_rlhfuse_computes_reference_log_probabilities_while_it_samples() -> None:
    assert of_rollpacker(RLHFUSE).trainer.num_extra_forwards == of_rollpacker(VERL).trainer.num_extra_forwards - 1


def test_without_a_controller_an_update_does_not_grow_with_the_padding() -> None:
    padded = RollPackerConstants(padded_token_s=1e-5)
    direct = replace(ROLLPACKER, has_controller=False)
    seconds = [
        of_rollpacker(variant, constants).profile.optimizer_s
        for variant, constants in ((direct, padded), (ROLLPACKER, CONSTANTS), (ROLLPACKER, padded))
    ]
    assert seconds[0] == seconds[1] == pytest.approx(seconds[2] - 1e-5 * 16 * 8 * 8_192)


def test_the_controller_overlaps_with_nothing() -> None:
    padded = RollPackerConstants(padded_token_s=1e-5)
    variants = (ROLLPACKER, replace(ROLLPACKER, has_controller=False))
    through, direct = (simulate(of_rollpacker(variant, padded), 2, keeps_spans=False) for variant in variants)
    assert through.total_s - direct.total_s == pytest.approx(2 * 1e-5 * 16 * 8 * 8_192)


def test_a_point_of_rolloutpipe_is_the_mean_of_four_rounds() -> None:
    constants = rolloutpipe.RolloutPipeConstants(median_tokens=300.0, max_tokens=512)
    rounds = simulate(rolloutpipe.job(constants, "cgp", 32, seed=1), 4, keeps_spans=False).steps
    cell = rolloutpipe.cell(constants, "cgp", 32, seed=1)
    assert cell.first_dispatch_s == fmean(each.first_dispatch_s for each in rounds)
    assert cell.rollout_to_train_end_s == fmean(each.rollout_to_train_end_s for each in rounds)
    assert len({each.first_dispatch_s for each in rounds}) == 4
