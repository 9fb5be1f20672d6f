"""The search for the choices that suit a job: what it may choose, what it promises, and what bounds it."""

from dataclasses import replace
from typing import Any

import pytest

from longshore.api.rollout import AdmissionSettings, EngineSettings, Handover, Strategy
from longshore.policy.round_policy import BatchShape
from longshore.sim import choices
from longshore.sim.choices import Choice, SearchBounds
from longshore.sim.job import GpuPool, SimJob, TrainerLayout, Training
from longshore.sim.lengths import LognormalLengths, TraceLengths
from longshore.sim.search import Prediction, SearchResult, search
from longshore.sim.simulate import simulate
from tests.unit.sim.jobs import POOL, job, rollout

LONG_TAIL = LognormalLengths.from_quantiles(500, 1_000, 16_384)
ALIKE = TraceLengths([[400] * 4])
SMALL = BatchShape(num_prompts=8, num_responses=4)
PLAIN = rollout(Strategy.TAIL_BATCHING, eta=1.0)
FACTORS_ONLY = SearchBounds(strategies=frozenset({Strategy.TAIL_BATCHING}))
APART = TrainerLayout(Training.PIPELINED, GpuPool(POOL.gpu, 4, 4), gpus_per_replica=2, groups_per_update=4)


def tailed(strategy: Strategy = Strategy.SYNCHRONOUS, **settings: object) -> SimJob:
    return job(strategy, lengths=LONG_TAIL, shape=SMALL, **settings)  # type: ignore[arg-type]


def strategies(found: SearchResult) -> set[Strategy]:
    return {one.choice.strategy for one in found.ranking}


@pytest.fixture(scope="module")
def found() -> SearchResult:
    """What suits a job of a long tail, within the usual bounds."""
    return search(tailed(), SearchBounds())


@pytest.fixture(scope="module")
def factors() -> SearchResult:
    """The same, where the factors of tail batching are all that can be chosen."""
    return search(tailed(), FACTORS_ONLY)


def test_a_long_tail_is_worth_a_change_and_the_gain_holds_on_other_draws(found: SearchResult) -> None:
    assert found.is_change and found.best is found.ranking[0]
    unseen = replace(tailed(), seed=977)
    before, after = (simulate(one.choice.applied_to(unseen), 24) for one in (found.present, found.best))
    assert max(after.mean_step_s / before.mean_step_s, before.tokens_per_s / after.tokens_per_s) < 1 - found.margin


def test_nothing_changes_where_all_responses_are_alike() -> None:
    found = search(job(chosen=PLAIN, lengths=ALIKE), SearchBounds())
    assert not found.is_change
    assert found.best is found.present


def test_a_gain_below_the_margin_changes_nothing(factors: SearchResult) -> None:
    gain = 1 - factors.ranking[0].cost(factors.present)
    assert replace(factors, margin=gain - 0.001).is_change
    assert not replace(factors, margin=gain + 0.001).is_change


def test_a_search_simulates_no_more_rounds_than_it_may() -> None:
    few, many = (search(tailed(), SearchBounds(tp_sizes=(2,)), num_rounds=num_rounds) for num_rounds in (60, 200))
    assert few.num_rounds <= 60 < many.num_rounds <= 200
    assert few.num_choices < many.num_choices


def test_strict_choices_keep_no_tokens_and_have_no_length_bias(found: SearchResult) -> None:
    assert all(one.choice.applied_to(tailed()).rollout.keeps_tokens is False for one in found.ranking)
    assert all(one.length_bias == 0 for one in found.ranking)


def test_tokens_are_kept_only_where_the_bounds_say_so() -> None:
    relaxed = SearchBounds(strategies=frozenset({Strategy.PARTIAL_ROLLOUT}))
    assert Strategy.PARTIAL_ROLLOUT in strategies(search(tailed(), relaxed))


def test_responses_race_only_where_the_bounds_say_so(factors: SearchResult) -> None:
    assert {one.choice.response_factor for one in factors.ranking} <= {None, 1.0}
    by_chance = replace(LONG_TAIL, prompt_share=0.0)  # All of the tail is within prompts: a race there gains most.
    raced = search(job(lengths=by_chance), replace(FACTORS_ONLY, max_response_factor=1.5))
    assert max(one.choice.response_factor or 1.0 for one in raced.ranking) > 1.0


def test_a_race_that_the_job_has_spreads_to_no_other_choice() -> None:
    found = search(tailed().with_rollout(rollout(Strategy.TAIL_BATCHING, eta=1.25)), SearchBounds(tp_sizes=(2,)))
    assert [one.choice for one in found.ranking if (one.choice.response_factor or 1.0) > 1.0] == [found.present.choice]


def test_a_choice_that_the_job_cannot_have_is_left_out() -> None:
    too_large = SearchBounds(tp_sizes=(3,), handovers=(Handover.PIPELINED,))
    found = search(tailed(), too_large)
    assert {one.choice.tp_size for one in found.ranking} == {1}
    assert {one.choice.handover for one in found.ranking} == {Handover.AFTER_ROUND}


def test_a_job_that_cannot_be_simulated_is_refused() -> None:
    cramped = rollout(Strategy.SYNCHRONOUS).model_copy(update={"engine": EngineSettings(gpu_memory_utilization=0.1)})
    with pytest.raises(ValueError, match="gpuMemoryUtilization"):
        search(job(chosen=cramped), SearchBounds())


def test_engine_sizes_that_are_quicker_are_found() -> None:
    found = search(tailed(), SearchBounds(tp_sizes=(1, 2)))
    assert found.best.choice.tp_size == 2
    assert not found.best.choice.plans_parallelism


def test_frontiers_are_tried_where_updates_follow_while_the_round_runs() -> None:
    apart = tailed(trainer=APART)
    found = search(apart, SearchBounds(is_frontier_open=True))
    assert Strategy.GROUP_PIPELINE in strategies(found) or any(one.choice.frontier_width for one in found.ranking)


@pytest.mark.parametrize(
    ("strategy", "training", "divided_in", "is_tried"),
    [
        (Strategy.SYNCHRONOUS, Training.AFTER_ROUND, {Training.AFTER_ROUND}, True),
        (Strategy.TAIL_BATCHING, Training.AFTER_ROUND, {Training.AFTER_ROUND}, False),
        (Strategy.REORDER_ROLLOUT, Training.AFTER_ROUND, {Training.AFTER_ROUND}, False),
        (Strategy.TAIL_BATCHING, Training.AFTER_ROUND, set(), True),
        (Strategy.TAIL_BATCHING, Training.STREAMED, {Training.AFTER_ROUND}, True),
        (Strategy.GROUP_PIPELINE, Training.AFTER_ROUND, set(), False),
    ],
)
def test_a_handover_that_takes_updates_from_long_rounds_is_not_tried(
    strategy: Strategy, training: Training, divided_in: set[Training], is_tried: bool
) -> None:
    """Unless the job has one: with a single update, long rounds teach less."""
    given = tailed(strategy, trainer=TrainerLayout(training, gpus_per_replica=2, divided_in=frozenset(divided_in)))
    bounds = SearchBounds(handovers=(Handover.AFTER_ROUND, Handover.STREAMED))
    tried = {one.handover for one in choices.handovers(Choice.of(given), given, bounds)}
    assert tried == {Handover.AFTER_ROUND, *([Handover.STREAMED] if is_tried else [])}


@pytest.mark.parametrize(
    ("strategy", "trainer", "is_tried"),
    [
        (Strategy.SYNCHRONOUS, {}, True),
        (Strategy.TAIL_BATCHING, {}, True),
        (Strategy.TAIL_BATCHING, {"divided_in": frozenset({Training.AFTER_ROUND})}, False),
        (Strategy.TAIL_BATCHING, {"divided_in": frozenset({Training.AFTER_ROUND, Training.PIPELINED})}, True),
        (Strategy.SYNCHRONOUS, {"groups_per_update": 4}, True),
        (Strategy.SYNCHRONOUS, {"compares_with_trainer": True}, True),
        (Strategy.SYNCHRONOUS, {"compares_with_trainer": True, "groups_per_update": 4}, False),
        (
            Strategy.SYNCHRONOUS,
            {"compares_with_trainer": True, "groups_per_update": 4, "training": Training.PIPELINED},
            True,
        ),
    ],
)
def test_a_pipelined_handover_takes_neither_updates_nor_the_trainers_own_log_probs(
    strategy: Strategy, trainer: dict[str, Any], is_tried: bool
) -> None:
    """Unless the job has one."""
    usual = {"training": Training.AFTER_ROUND, "groups_per_update": None}
    given = tailed(strategy, trainer=replace(APART, **usual | trainer))
    bounds = SearchBounds(handovers=(Handover.AFTER_ROUND, Handover.PIPELINED))
    tried = {one.handover for one in choices.handovers(Choice.of(given), given, bounds)}
    assert tried == {Handover.AFTER_ROUND, *([Handover.PIPELINED] if is_tried else [])}


def test_auto_is_searched_from_what_it_begins_with() -> None:
    given = tailed(Strategy.AUTO)
    assert Choice.of(given) == Choice.of(tailed(Strategy.TAIL_BATCHING))


@pytest.mark.parametrize("strategy", [one for one in Strategy if one is not Strategy.AUTO])
def test_the_choice_of_a_job_makes_that_job_again(strategy: Strategy) -> None:
    admission = AdmissionSettings(frontier_width=3, max_active_per_engine=8)
    given = job(chosen=rollout(strategy).model_copy(update={"admission": admission}))
    assert Choice.of(given).applied_to(given) == given


def test_an_unbiased_choice_within_the_margin_is_preferred() -> None:
    present = Prediction(Choice.of(tailed()), 10.0, 100.0, 1.0, 0.0, 0.0, 8)
    relaxed = replace(present, choice=present.choice.under(Strategy.PARTIAL_ROLLOUT), step_s=7.0, off_policy_share=0.2)
    racing = replace(present, choice=present.choice.under(Strategy.TAIL_BATCHING), step_s=7.1, length_bias=-0.1)
    strict = replace(present, choice=present.choice.under(Strategy.REORDER_ROLLOUT), step_s=7.2)
    quickest = (replace(relaxed, tokens_per_s=200.0), replace(racing, tokens_per_s=200.0))
    near = SearchResult((*quickest, replace(strict, tokens_per_s=200.0), present), present, present, 0.03, 8, 4)
    assert near.best.choice == strict.choice
    far = replace(near, ranking=(*quickest, replace(strict, step_s=7.5, tokens_per_s=200.0), present))
    assert far.best.choice == relaxed.choice
