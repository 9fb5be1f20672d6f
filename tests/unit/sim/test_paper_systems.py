"""What tells the systems of the papers apart."""

from dataclasses import replace
from statistics import fmean

import pytest

from longshore.api.round_status import RoundKind
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseFinished, ResponseId
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore.sim.job import SimJob
from longshore.sim.paper import rolloutpipe, rollpacker
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
from longshore.sim.paper.rollpacker_figures import period_s
from longshore.sim.paper.tasks import divided, mixed_policy
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


def test_only_longshore_weighs_what_freed_gpus_gain() -> None:
    assert not of_rollpacker(ROLLPACKER).trainer.weighs_benefit
    assert not of_rollpacker(RLHFUSE).trainer.weighs_benefit
    assert of_rollpacker(replace(ROLLPACKER, weighs_benefit=True)).trainer.weighs_benefit


def launched(policy: RoundPolicy) -> list[ResponseId]:
    """Begins a round."""
    return list(policy.start_round().decision.launch)


def tasks(draws: set[Draw]) -> list[int]:
    return [sum(draw.index % 3 == task for draw in draws) for task in range(3)]


def test_a_short_round_of_rollpacker_takes_its_share_of_every_task() -> None:
    policy = mixed_policy(of_rollpacker(ROLLPACKER))
    started = launched(policy)
    num_started = tasks({response.draw for response in started})
    assert sum(num_started) == 20
    # All of the first task end, then all of the second, then all of the third.
    in_order = sorted(started, key=lambda response: (response.draw.index % 3, response))
    ended: set[ResponseId] = set()
    aborted: set[ResponseId] = set()
    for step, response in enumerate(in_order):
        if response not in aborted:
            decision = policy.responses_finished([ResponseFinished(response, step)])
            ended.add(response)
            assert not ended.intersection(decision.abort)
            aborted.update(decision.abort)
    end = policy.end_round()
    assert tasks({group.draw for group in end.accepted}) == list(divided(16, dict(enumerate(num_started))).values())
    assert {group.draw for group in end.accepted} | set(end.deferred) == {response.draw for response in started}


def test_a_long_round_of_rollpacker_takes_all_that_it_starts() -> None:
    policy = mixed_policy(of_rollpacker(ROLLPACKER))
    for number in range(5):
        started = launched(policy)
        policy.responses_finished([ResponseFinished(response, 1) for response in started])
        end = policy.end_round()
        assert len(end.accepted) == 16
        assert len(end.deferred) == (4 if number < 4 else 0)


def test_responses_that_end_together_give_no_task_more_than_its_share() -> None:
    policy = mixed_policy(of_rollpacker(TAIL_BATCHING))
    started = launched(policy)
    decision = policy.responses_finished([ResponseFinished(response, 1) for response in started])
    assert decision.has_batch
    assert not set(decision.abort).intersection(started)
    shares = divided(16, dict(enumerate(tasks({response.draw for response in started}))))
    assert tasks({group.draw for group in decision.accepted}) == [shares[task] for task in range(3)]


def test_rollpackers_batch_has_the_configured_share_of_every_task() -> None:
    policy = mixed_policy(rollpacker.job(CONSTANTS, SETTINGS["7B"], ROLLPACKER, Task.MIXED, 0))
    started = {response.draw for response in launched(policy)}
    assert tasks(started) == [55, 50, 55]
    assert divided(128, {0: 55, 1: 50, 2: 55}) == {0: 44, 1: 40, 2: 44}


def test_the_baseline_samples_the_same_prompts() -> None:
    ours, baseline = (mixed_policy(of_rollpacker(variant)) for variant in (ROLLPACKER, VERL))
    first = {response.draw for response in launched(baseline)}
    assert first < {response.draw for response in launched(ours)}


def test_a_period_takes_the_longest_round_of_each_kind_as_often_as_the_kind_comes() -> None:
    (step,) = simulate(of_rollpacker(VERL), 1, keeps_spans=False).steps
    short = [replace(step, kind=RoundKind.SHORT, rollout_s=seconds) for seconds in (10.0, 30.0, 20.0)]
    long = replace(step, kind=RoundKind.LONG, rollout_s=100.0)
    assert period_s([*short, long], 1.25) == pytest.approx((4 * 30 + 100) / 5)
    assert period_s([*short, long], 1.5) == pytest.approx((2 * 30 + 100) / 3)
    assert period_s(short, 1.0) == 30.0


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
