"""Lengths and rewards of simulated responses."""

from itertools import product
from statistics import fmean, pstdev, quantiles

import pytest

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.sim.lengths import Accuracy, LognormalLengths, TraceLengths

MODEL = LognormalLengths.from_quantiles(600, 1000, 16_384, capped_share=0.01)


def lengths_of(model: LognormalLengths, num_prompts: int, num_responses: int) -> list[list[int]]:
    return [
        [model.response_tokens(ResponseId(Draw(0, prompt), index)) for index in range(num_responses)]
        for prompt in range(num_prompts)
    ]


def test_a_fit_meets_the_published_quantiles_and_the_share_that_reaches_the_cap() -> None:
    tokens = [length for group in lengths_of(MODEL, 4000, 2) for length in group]
    quarters = quantiles(tokens, n=4)
    assert quarters[1] == pytest.approx(600, rel=0.05)
    assert quarters[2] == pytest.approx(1000, rel=0.05)
    assert max(tokens) == 16_384
    assert sum(length == 16_384 for length in tokens) / len(tokens) == pytest.approx(0.01, rel=0.4)


def test_responses_of_a_prompt_resemble_each_other() -> None:
    groups = lengths_of(MODEL, 500, 8)
    within = fmean(pstdev(group) for group in groups)
    across = pstdev([length for group in groups for length in group])
    assert within < across / 2


def test_a_response_keeps_its_length_and_another_epoch_has_others() -> None:
    first, equal = ResponseId(Draw(0, 7), 1), ResponseId(Draw(0, 7), 1)
    assert MODEL.response_tokens(first) == MODEL.response_tokens(equal)
    epochs = {MODEL.response_tokens(ResponseId(Draw(epoch, 7), 1)) for epoch in range(10)}
    assert len(epochs) > 5


def test_prompts_with_long_responses_are_hard() -> None:
    draws = [Draw(0, prompt) for prompt in range(300)]
    ranked = sorted(draws, key=MODEL.hardness)
    means = {draw: fmean(MODEL.response_tokens(ResponseId(draw, index)) for index in range(4)) for draw in draws}
    assert fmean(means[draw] for draw in ranked[:100]) * 2 < fmean(means[draw] for draw in ranked[-100:])


def test_a_trace_repeats_its_prompts_and_each_epoch_begins_one_response_later() -> None:
    trace = TraceLengths([[10], [30, 40]])
    assert trace.max_tokens == 40
    assert trace.response_tokens(ResponseId(Draw(0, 0), 3)) == 10
    assert [trace.response_tokens(ResponseId(Draw(0, 1), index)) for index in range(3)] == [30, 40, 30]
    assert trace.response_tokens(ResponseId(Draw(1, 3), 0)) == 40
    assert trace.hardness(Draw(0, 0)) < 0 < trace.hardness(Draw(0, 1))


def outcomes(accuracy: Accuracy) -> list[list[bool]]:
    return [
        [accuracy.is_correct(ResponseId(Draw(0, prompt), index), MODEL.hardness(Draw(0, prompt))) for index in range(4)]
        for prompt in range(1500)
    ]


def test_the_mean_accuracy_comes_out_whatever_the_spread() -> None:
    for mean, spread in product((0.3, 0.7), (0.2, 2.0)):
        rewards = [reward for group in outcomes(Accuracy(mean, spread)) for reward in group]
        assert fmean(rewards) == pytest.approx(mean, abs=0.04)


def test_a_wider_spread_of_difficulty_gives_more_groups_without_variance() -> None:
    def share(spread: float) -> float:
        return fmean(len(set(group)) == 1 for group in outcomes(Accuracy(0.5, spread)))

    assert share(0.1) < share(1.0) < share(3.0)


def test_long_prompts_are_answered_worse_in_proportion_to_the_correlation() -> None:
    def long_less_short(correlation: float) -> float:
        groups = outcomes(Accuracy(0.5, 1.0, correlation))
        ranked = sorted(range(len(groups)), key=lambda prompt: MODEL.hardness(Draw(0, prompt)))
        means = [fmean(groups[prompt]) for prompt in ranked]
        return fmean(means[-500:]) - fmean(means[:500])

    assert long_less_short(0.9) < -0.3
    assert abs(long_less_short(0.0)) < 0.06
