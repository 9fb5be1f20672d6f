"""Auto: factors change between rounds, and every promise of tail batching holds all the same."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.rollout import Handover, Rollout, Strategy
from longshore.api.round_status import RoundKind
from longshore.api.spec import RLJobSpec
from longshore.policy.auto import Auto, RoundChoice, free_handovers
from longshore.policy.draws import DrawCursor
from longshore.policy.round_policy import BatchShape
from tests.properties import examples
from tests.unit.api.specs import spec, strategy
from tests.unit.policy.rounds import FakeRollout, Job

JOB = Job(Rollout(strategy=Strategy.AUTO), BatchShape(4, 2))
CHOICES = st.builds(
    RoundChoice,
    prompt_factor=st.sampled_from([1.0, 1.25, 1.5, 2.0, 3.0]),
    handover=st.sampled_from([Handover.AFTER_ROUND, Handover.PIPELINED]),
    frontier_width=st.none() | st.integers(1, 4),
)


def auto(num_prompts: int = 4) -> Auto:
    return Auto(BatchShape(num_prompts, 2), DrawCursor(100, seed=0), RoundChoice())


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(CHOICES, min_size=1, max_size=12), st.integers(0, 1_000))
def test_whatever_is_chosen_every_draw_is_trained_on_once(chosen: list[RoundChoice], seed: int) -> None:
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
    policy.choose(RoundChoice(prompt_factor=factor))
    start = policy.start_round()
    assert start.kind is RoundKind.SHORT
    assert len({response.draw for response in start.decision.launch}) == 4 * factor


def test_nothing_changes_while_a_round_runs() -> None:
    policy = auto()
    policy.start_round()
    with pytest.raises(AssertionError, match="between rounds"):
        policy.choose(RoundChoice(prompt_factor=1.5))


def test_the_next_round_has_the_chosen_frontier() -> None:
    policy = auto()
    policy.choose(RoundChoice(prompt_factor=2.0, frontier_width=1))
    start = policy.start_round(engines=(0, 1, 2))
    assert len({response.draw for response in start.decision.launch}) == 3


def test_a_job_that_resumes_has_what_it_had_chosen() -> None:
    before, after = auto(), auto()
    before.choose(RoundChoice(2.0, 1.5, Handover.PIPELINED, frontier_width=3))
    after.load_state(json.loads(json.dumps(before.export_state())))
    assert after.choice == before.choice
    assert isinstance(after.choice.handover, Handover)
    assert after.start_round() == before.start_round()


def test_job_with_other_settings_begins_with_those() -> None:
    before = auto()
    before.choose(RoundChoice(prompt_factor=2.0))
    for begin in (
        RoundChoice(prompt_factor=1.5), RoundChoice(handover=Handover.PIPELINED), RoundChoice(frontier_width=8)
    ):  # fmt: skip
        after = Auto(BatchShape(4, 2), DrawCursor(100, seed=0), begin)
        after.load_state(before.export_state())
        assert after.choice == begin


SEPARATE = strategy("Auto") | {"placement": "Disaggregated", "trainerWorkers": {"replicas": 1}}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (strategy("Auto"), ()),  # The GPUs are shared: only the operator can free some.
        (SEPARATE, (Handover.AFTER_ROUND, Handover.PIPELINED)),
        (SEPARATE | {"rollout.handover": "AfterRound"}, ()),
        (SEPARATE | {"rollout.handover": "Pipelined"}, ()),
        (SEPARATE | {"algorithm.epochsPerStep": 2}, ()),
    ],
)
def test_handovers_take_turns_where_trainers_have_gpus_and_the_job_names_none(
    changes: dict[str, Any], found: tuple[Handover, ...]
) -> None:
    assert free_handovers(RLJobSpec.model_validate(spec(changes))) == found
