"""Auto: factors change between rounds, and every promise of tail batching holds all the same."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.rollout import Rollout, Strategy, TailBatchingSettings
from longshore.api.round_status import RoundKind
from longshore.policy.auto import Auto
from longshore.policy.draws import DrawCursor
from longshore.policy.round_policy import BatchShape
from tests.properties import examples
from tests.unit.policy.rounds import FakeRollout, Job

JOB = Job(Rollout(strategy=Strategy.AUTO), BatchShape(4, 2))
FACTORS = st.builds(TailBatchingSettings, prompt_factor=st.sampled_from([1.0, 1.25, 1.5, 2.0, 3.0]))


def auto(num_prompts: int = 4) -> Auto:
    return Auto(BatchShape(num_prompts, 2), DrawCursor(100, seed=0), TailBatchingSettings())


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(FACTORS, min_size=1, max_size=12), st.integers(0, 1_000))
def test_however_factors_change_every_draw_is_trained_on_once(chosen: list[TailBatchingSettings], seed: int) -> None:
    policy = JOB.policy()
    assert isinstance(policy, Auto)
    engines = FakeRollout(policy, JOB, random.Random(seed))
    for factors in chosen:
        policy.choose(factors)
        engines.round()
        engines.audit.assert_invariants(policy)
        assert len(engines.audit.ends[-1].accepted) == 4
    while policy.num_deferred:
        engines.round(draining=True)
    engines.audit.assert_invariants(policy)


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0])
def test_the_next_short_round_has_the_chosen_factor(factor: float) -> None:
    policy = auto()
    policy.choose(TailBatchingSettings(prompt_factor=factor))
    start = policy.start_round()
    assert start.kind is RoundKind.SHORT
    assert len({response.draw for response in start.decision.launch}) == 4 * factor


def test_factors_do_not_change_while_a_round_runs() -> None:
    policy = auto()
    policy.start_round()
    with pytest.raises(AssertionError, match="between rounds"):
        policy.choose(TailBatchingSettings(prompt_factor=1.5))


def test_a_job_that_resumes_has_the_factors_that_it_had_chosen() -> None:
    before, after = auto(), auto()
    before.choose(TailBatchingSettings(prompt_factor=2.0, response_factor=1.5))
    after.load_state(before.export_state())
    assert after.settings == before.settings
    assert after.start_round() == before.start_round()


def test_a_job_that_was_given_other_factors_or_a_lower_bound_begins_with_those() -> None:
    before = auto()
    before.choose(TailBatchingSettings(prompt_factor=2.0))
    for begin, most in ((TailBatchingSettings(prompt_factor=1.5), 2.0), (TailBatchingSettings(), 1.5)):
        after = Auto(BatchShape(4, 2), DrawCursor(100, seed=0), begin, max_prompt_factor=most)
        after.load_state(before.export_state())
        assert after.settings == begin
