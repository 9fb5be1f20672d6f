"""What every round policy promises, whatever engines and rewards do."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.rollout import OnPolicy, PartialRollout, Rollout, Strategy, TailBatching
from longshore.policy.draws import DrawCursor
from longshore.policy.presets import round_policy
from longshore.policy.round_policy import BatchShape, RoundPolicy
from tests.unit.policy.rounds import FakeRollout

shapes = st.builds(BatchShape, st.integers(1, 6), st.integers(2, 5))
factors = st.floats(1.0, 3.0)
rollouts = st.one_of(
    st.just(Rollout(strategy=Strategy.SYNCHRONOUS)),
    st.builds(
        lambda prompts, responses: Rollout(
            strategy=Strategy.TAIL_BATCHING,
            tail_batching=TailBatching(prompt_factor=prompts, response_factor=responses),
        ),
        factors,
        factors,
    ),
    st.builds(
        lambda factor: Rollout(
            on_policy=OnPolicy.RELAXED,
            strategy=Strategy.PARTIAL_ROLLOUT,
            partial_rollout=PartialRollout(group_factor=factor),
        ),
        factors,
    ),
)


def build(rollout: Rollout, shape: BatchShape) -> RoundPolicy:
    return round_policy(rollout, shape, DrawCursor(num_prompts=23, seed=5))


@given(rollouts, shapes, st.integers(0, 12), st.floats(0, 0.4), st.randoms(use_true_random=False))
def test_every_draw_is_consumed_once_and_every_batch_is_exact(
    rollout: Rollout, shape: BatchShape, num_rounds: int, rejection: float, rng: random.Random
) -> None:
    policy = build(rollout, shape)
    fake = FakeRollout(policy, shape, rng, rejection)
    for _ in range(num_rounds):
        assert len(fake.round().accepted) == shape.num_prompts
        fake.audit.assert_invariants(policy)


@given(rollouts, shapes, st.integers(0, 8), st.randoms(use_true_random=False))
def test_draining_empties_the_queue(rollout: Rollout, shape: BatchShape, num_rounds: int, rng: random.Random) -> None:
    policy = build(rollout, shape)
    fake = FakeRollout(policy, shape, rng)
    for _ in range(num_rounds):
        fake.round()
    while policy.num_deferred:
        before = policy.num_deferred
        end = fake.round(draining=True)
        assert 0 < len(end.accepted) <= shape.num_prompts
        assert policy.num_deferred == before - len(end.accepted)
    assert set(fake.audit.trained) == fake.audit.admitted
    fake.audit.assert_invariants(policy)


@settings(max_examples=50)
@given(rollouts, shapes, st.integers(0, 6), st.integers(0, 2**32))
def test_a_restored_policy_continues_as_if_never_stopped(
    rollout: Rollout, shape: BatchShape, num_rounds: int, seed: int
) -> None:
    def ends(stop_after: int | None) -> list[object]:
        rng = random.Random(seed)
        policy = build(rollout, shape)
        seen: list[object] = []
        for number in range(num_rounds + 3):
            if number == stop_after:
                state = json.loads(json.dumps(policy.export_state()))
                policy = build(rollout, shape)
                policy.load_state(state)
            seen.append(FakeRollout(policy, shape, rng).round())
        return seen

    assert ends(stop_after=num_rounds) == ends(stop_after=None)


@given(st.integers(1, 40), st.integers(0, 3), st.integers(0, 100))
def test_an_epoch_goes_once_through_all_prompts_and_epochs_stay_distinct(num: int, epochs: int, seed: int) -> None:
    draws = DrawCursor(num, seed).take(num * (epochs + 1))
    assert len(set(draws)) == len(draws)
    for epoch in range(epochs + 1):
        assert sorted(draw.index for draw in draws if draw.epoch == epoch) == list(range(num))


def test_a_policy_refuses_what_another_strategy_left_over() -> None:
    shape = BatchShape(2, 2)
    partial = build(Rollout(on_policy=OnPolicy.RELAXED, strategy=Strategy.PARTIAL_ROLLOUT), shape)
    FakeRollout(partial, shape, random.Random(1)).round()
    with pytest.raises(ValueError, match=r"rollout.strategy: 2 draws still wait under PartialRollout"):
        build(Rollout(strategy=Strategy.TAIL_BATCHING), shape).load_state(partial.export_state())


def test_a_cursor_refuses_another_order() -> None:
    with pytest.raises(ValueError, match=r"algorithm.seed: it is 2 now and was 1"):
        DrawCursor(10, seed=2).load_state(DrawCursor(10, seed=1).export_state())


def test_a_cursor_refuses_a_checkpoint_of_other_data() -> None:
    state = DrawCursor(10, seed=1).export_state()
    with pytest.raises(ValueError, match="it has 9 prompts now and had 10"):
        DrawCursor(9, seed=1).load_state(state)
