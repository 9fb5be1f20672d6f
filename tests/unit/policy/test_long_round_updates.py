"""How many optimizer updates a long round makes, and on which part of its batch each."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.api.algorithm import Algorithm, LongRoundUpdates
from longshore.api.correction import RolloutCorrection
from longshore.api.objectives.gspo import Gspo
from longshore.api.objectives.reinforce_plus_plus import ReinforcePlusPlus
from longshore.api.rollout import Handover, Rollout, Strategy, TailBatchingSettings
from longshore.api.round_status import RoundKind
from longshore.policy.auto import Auto, RoundChoice
from longshore.policy.draws import DrawCursor
from longshore.policy.long_round_updates import divided, expected_updates, streams_gradients, update_sizes
from longshore.policy.round import ResponseFinished
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore.policy.tail_batching import TailBatching

NUM_PROMPTS = 8


def algorithm(**fields: Any) -> Algorithm:
    shape = {"steps": 50, "prompts_per_step": NUM_PROMPTS, "responses_per_prompt": 2, "max_response_tokens": 8}
    return Algorithm(**{**shape, **fields})


def tail_batching(factor: float) -> TailBatching:
    shape = BatchShape(NUM_PROMPTS, 1)
    return TailBatching(shape, DrawCursor(1_000, seed=0), TailBatchingSettings(prompt_factor=factor))


def run_round(policy: RoundPolicy, *, draining: bool = False) -> tuple[RoundKind, int]:
    """A round in which responses end in the order in which they were started: its kind, and its updates."""
    num_updates = policy.next_num_updates(draining=draining)
    start = policy.start_round(draining=draining)
    for step, response in enumerate(start.decision.launch):
        if policy.responses_finished([ResponseFinished(response, step)]).has_batch:
            break
    return policy.end_round().kind, num_updates


@given(st.integers(1, 200), st.integers(1, 60))
def test_updates_of_a_long_round_are_alike_in_size_and_take_each_group_once(num_groups: int, num_updates: int) -> None:
    sizes = divided(num_groups, num_updates)
    assert sum(sizes) == num_groups
    assert len(sizes) == min(num_updates, num_groups)
    assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1


def test_a_long_round_makes_an_update_for_each_round_that_deferred_draws_and_its_own() -> None:
    policy = tail_batching(1.25)
    found = [run_round(policy) for _ in range(10)]
    assert found == [*[(RoundKind.SHORT, 1)] * 4, (RoundKind.LONG, 5)] * 2


def test_with_the_longest_factor_long_rounds_in_a_row_share_one_short_round() -> None:
    policy = tail_batching(3.0)
    assert [run_round(policy) for _ in range(3)] == [(RoundKind.SHORT, 1), (RoundKind.LONG, 2), (RoundKind.LONG, 1)]


def test_what_waits_at_the_end_of_a_job_is_a_long_round_too() -> None:
    policy = tail_batching(1.25)
    for _ in range(3):
        run_round(policy)
    assert run_round(policy, draining=True) == (RoundKind.LONG, 4)


def test_rounds_that_put_nothing_off_do_not_count() -> None:
    policy = Auto(BatchShape(NUM_PROMPTS, 1), DrawCursor(1_000, seed=0), RoundChoice(prompt_factor=1.25))
    assert [run_round(policy)[1] for _ in range(2)] == [1, 1]
    policy.choose(RoundChoice(prompt_factor=1.0))
    assert [run_round(policy)[1] for _ in range(7)] == [1] * 7
    policy.choose(RoundChoice(prompt_factor=1.5))
    assert run_round(policy) == (RoundKind.SHORT, 1)
    assert run_round(policy) == (RoundKind.LONG, 4)


def test_a_job_that_goes_on_from_a_checkpoint_makes_the_same_updates() -> None:
    policy, other = tail_batching(1.25), tail_batching(1.25)
    for _ in range(3):
        run_round(policy)
    state = json.loads(json.dumps(policy.export_state()))
    other.load_state(state)
    assert [run_round(other) for _ in range(2)] == [(RoundKind.SHORT, 1), (RoundKind.LONG, 5)]


@pytest.mark.parametrize(
    ("fields", "handover"),
    [
        ({"long_round_updates": LongRoundUpdates.ONE}, Handover.AFTER_ROUND),
        ({"prompts_per_update": NUM_PROMPTS}, Handover.AFTER_ROUND),
        ({"objective": ReinforcePlusPlus()}, Handover.AFTER_ROUND),
        ({"rollout_correction": RolloutCorrection()}, Handover.PIPELINED),
        ({"objective": Gspo()}, Handover.PIPELINED),
    ],
)
def test_a_long_round_is_not_divided(fields: dict[str, Any], handover: Handover) -> None:
    """By the job's own word, or where an update has to wait for the whole batch."""
    assert update_sizes(algorithm(**fields), handover, 5) == (NUM_PROMPTS,)


@pytest.mark.parametrize(
    "fields",
    [{}, {"rollout_correction": RolloutCorrection()}, {"epochs_per_step": 2}, {"objective": Gspo()}],
)
@pytest.mark.parametrize("handover", [Handover.AFTER_ROUND, Handover.STREAMED])
def test_a_long_round_is_divided(handover: Handover, fields: dict[str, Any]) -> None:
    assert update_sizes(algorithm(**fields), handover, 5) == (1, 2, 1, 2, 2)
    assert update_sizes(algorithm(**fields), handover, 1) == (NUM_PROMPTS,)


def test_gradients_are_streamed_in_rounds_of_a_single_update() -> None:
    one, streamed = algorithm(long_round_updates=LongRoundUpdates.ONE), Handover.STREAMED
    assert streams_gradients(streamed, update_sizes(one, streamed, 5))
    assert streams_gradients(streamed, update_sizes(algorithm(), streamed, 1))
    assert not streams_gradients(streamed, update_sizes(algorithm(), streamed, 5))
    assert not streams_gradients(Handover.AFTER_ROUND, (NUM_PROMPTS,))


def test_updates_that_a_job_asks_for_are_those_of_every_round() -> None:
    assert update_sizes(algorithm(prompts_per_update=2), Handover.AFTER_ROUND, 5) == (2,)


@pytest.mark.parametrize("factor", [1.0, 1.125, 1.25, 1.5, 2.0, 3.0])
def test_the_expected_updates_of_tail_batching_are_those_that_it_makes(factor: float) -> None:
    """The learning rate reaches its end with them."""
    policy, num_steps = tail_batching(factor), 90
    made = sum(len(update_sizes(algorithm(), Handover.AFTER_ROUND, run_round(policy)[1])) for _ in range(num_steps))
    rollout = Rollout(tail_batching=TailBatchingSettings(prompt_factor=factor))
    assert expected_updates(algorithm(steps=num_steps), rollout) == pytest.approx(made, abs=4)


def test_strategies_without_long_rounds_make_the_updates_of_their_steps() -> None:
    one, several = algorithm(), algorithm(prompts_per_update=2, epochs_per_step=3)
    for strategy in (Strategy.SYNCHRONOUS, Strategy.GROUP_PIPELINE):
        rollout = Rollout(strategy=strategy)
        assert (expected_updates(one, rollout), expected_updates(several, rollout)) == (50, 50 * 4 * 3)
