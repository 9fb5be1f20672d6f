"""From scored groups to samples: rewards, masks, denominators and shares."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from operator import ge
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.algorithm import Algorithm
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.rollout.batch import ScoredGroup, ScoredResponse
from longshore_runtime.trainer.group import rank_shares, shares, step_denominator
from longshore_runtime.trainer.updates import batch_samples, off_policy_token_share
from longshore_runtime.trajectories.trajectory import EMPTY, Trajectory
from tests.contract.trainers.replicas import BUILT_IN, make_samples, options_of, with_masks
from tests.properties import examples

RECORDS = [PromptRecord(index, "p", (7, index), "a") for index in range(9)]


def algorithm(name: str = "GRPO", **fields: object) -> Algorithm:
    required = {"steps": 1, "prompts_per_step": 1, "responses_per_prompt": 2, "max_response_tokens": 10}
    return Algorithm.model_validate({"objective": {"name": name}, **required, **fields})


def response(index: int, reward: float, runs: Sequence[tuple[int | None, int]], prompt: int = 0) -> ScoredResponse:
    """`runs`: (policy version or None, number of tokens)."""
    parts = (
        Trajectory.observed([3] * length)
        if version is None
        else Trajectory.sampled(version, [3] * length, [-1.0] * length)
        for version, length in runs
    )
    completion = Completion(f"{prompt}/{index}", sum(parts, EMPTY), FinishReason.STOP, engine_step=0)
    return ScoredResponse(ResponseId(Draw(0, prompt), index), completion, reward, timed_out=False)


def group(prompt: int, responses: Sequence[ScoredResponse]) -> ScoredGroup:
    return ScoredGroup(Draw(0, prompt), tuple(responses))


STALE = group(0, [response(0, 1.0, [(3, 2), (4, 1), (5, 3)]), response(1, 0.0, [(5, 4)]), response(2, 1.0, [(2, 5)])])


def test_tokens_of_older_weights_are_counted_and_stay_in_the_loss() -> None:
    samples = batch_samples([STALE], RECORDS, algorithm(), policy_version=5)
    assert [sample.num_stale_tokens for sample in samples] == [3, 0, 5]
    assert [sample.loss_mask for sample in samples] == [None] * 3
    assert [sample.num_loss_tokens for sample in samples] == [6, 4, 5]
    assert off_policy_token_share(samples) == 8 / 15


def test_masked_tokens_of_older_weights_are_counted_and_leave_the_loss() -> None:
    samples = batch_samples([STALE], RECORDS, algorithm(mask_stale_tokens=True), policy_version=5)
    masks = [sample.in_loss.tolist() for sample in samples]
    assert masks == [[False] * 3 + [True] * 3, [True] * 4, [False] * 5]
    assert [sample.num_loss_tokens for sample in samples] == [3, 4, 0]
    assert off_policy_token_share(samples) == 8 / 15


EPISODES = group(
    0, [response(0, 1.0, [(4, 2), (None, 3), (4, 1), (5, 1), (None, 1), (5, 2)]), response(1, 0.0, [(5, 4)])]
)


@pytest.mark.parametrize("masks_stale", [False, True])
def test_observed_tokens_are_neither_in_the_loss_nor_off_policy(masks_stale: bool) -> None:
    options = algorithm(mask_stale_tokens=masks_stale)
    episode, single = batch_samples([EPISODES], RECORDS, options, policy_version=5)
    old = not masks_stale
    assert episode.in_loss.tolist() == [old] * 2 + [False] * 3 + [old, True, False, True, True]
    assert (episode.num_compared_tokens, single.num_compared_tokens) == (3, 4)
    assert single.in_loss.all()
    assert off_policy_token_share([episode, single]) == 3 / 10


def test_without_samples_nothing_is_off_policy() -> None:
    assert off_policy_token_share([]) == 0.0


def test_the_overlong_penalty_enters_the_advantages_and_not_the_reward() -> None:
    responses = [response(index, 1.0, [(0, length)]) for index, length in enumerate([6, 8, 10])]
    punished = algorithm("DrGRPO", overlong_buffer_tokens=4, overlong_penalty=2.0)
    samples = batch_samples([group(0, responses)], RECORDS, punished, policy_version=0)
    assert [sample.reward for sample in samples] == [1.0, 1.0, 1.0]
    assert [sample.penalty for sample in samples] == [0.0, -1.0, -2.0]
    assert [sample.advantage for sample in samples] == [1.0, 0.0, -1.0]


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "ReinforcePlusPlus"])
@given(st.lists(st.lists(st.floats(-1, 1), min_size=2, max_size=4), min_size=1, max_size=9))
def test_groups_that_arrive_one_by_one_give_the_samples_of_the_batch(name: str, rewards: list[list[float]]) -> None:
    options = algorithm(name)
    groups = [
        group(prompt, [response(index, reward, [(0, index + 1)], prompt) for index, reward in enumerate(of_group)])
        for prompt, of_group in enumerate(rewards)
    ]
    one_by_one = [sample for one in groups for sample in batch_samples([one], RECORDS, options, 0)]
    assert batch_samples(groups, RECORDS, options, 0) == one_by_one
    assert [sample.prompt_tokens.tolist() for sample in one_by_one] == [[7, one.draw.index] for one in one_by_one]


@pytest.mark.parametrize("name", BUILT_IN)
@given(st.permutations(range(12)))
def test_the_denominator_of_a_step_does_not_depend_on_the_order_of_its_samples(name: str, order: list[int]) -> None:
    samples, options = with_masks(make_samples()), options_of(name)
    assert step_denominator([samples[place] for place in order], options) == step_denominator(samples, options)


@pytest.mark.parametrize("num_replicas", [1, 2, 5])
def test_shares_hold_every_sample_once_and_differ_by_no_more_than_the_longest(num_replicas: int) -> None:
    samples = make_samples()
    lengths = [[one.num_tokens for one in part] for part in shares(samples, num_replicas)]
    together = [sample for part in shares(samples, num_replicas) for sample in part]
    assert sorted(map(repr, together)) == sorted(map(repr, samples))
    assert max(map(sum, lengths)) - min(map(sum, lengths)) <= max(map(max, lengths))


@given(
    dealt=st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=24),
    num_ranks=st.integers(1, 4),
    random=st.randoms(use_true_random=False),
)
@settings(max_examples=examples(100))
def test_ranks_get_every_sample_once_and_alike_in_gradients_and_lengths(
    dealt: list[tuple[int, bool]], num_ranks: int, random: Random
) -> None:
    (one,) = make_samples(1)
    samples = [
        replace(one, draw=Draw(0, number), trajectory=Trajectory.sampled(0, [3] * length, [-1.0] * length),
                advantage=float(learns))
        for number, (length, learns) in enumerate(dealt)
    ]  # fmt: skip
    parts = rank_shares(samples, num_ranks)
    assert rank_shares(random.sample(samples, len(samples)), num_ranks) == parts, "no matter who had them first"
    assert sorted(sample.draw for part in parts for sample in part) == [sample.draw for sample in samples]
    for first, second in permutations(parts, 2):
        assert abs(len(first) - len(second)) <= 1
        for learns in (True, False):
            one_lengths, other_lengths = (
                sorted((sample.num_tokens for sample in part if bool(sample.advantage) is learns), reverse=True)
                for part in (first, second)
            )
            assert len(one_lengths) <= len(other_lengths) + 1
            assert all(map(ge, one_lengths, other_lengths[1:])), "a rank's next sample is no longer than another's last"
