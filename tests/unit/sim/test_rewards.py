"""Reward workers and the times of verifiers."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.policy.adaptive_timeout import TimeoutSettings
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.sim.rewards import (
    CodeRewards,
    EndpointRewards,
    MathsRewards,
    MixedRewards,
    RewardStage,
    Scoring,
)


def scoring(prompt: int, index: int = 0, *, num_tokens: int = 100, correct: bool = True) -> Scoring:
    return Scoring(ResponseId(Draw(0, prompt), index), num_tokens, correct)


@dataclass(frozen=True)
class TokensAreSeconds:
    def reward_s(self, scored: Scoring, limit_s: float | None) -> float:
        return float(scored.num_tokens)


def test_one_worker_scores_one_after_the_other() -> None:
    stage = RewardStage(TokensAreSeconds(), num_workers=1)
    assert stage.submit([scoring(0, num_tokens=3), scoring(0, 1, num_tokens=4)], 10.0) == 17.0
    assert stage.submit([scoring(1, num_tokens=1)], 12.0) == 18.0
    assert stage.submit([scoring(2, num_tokens=1)], 30.0) == 31.0


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 8))
def test_workers_are_never_idle_while_samples_wait(durations: list[int], num_workers: int) -> None:
    stage = RewardStage(TokensAreSeconds(), num_workers)
    group = [scoring(0, index, num_tokens=duration) for index, duration in enumerate(durations)]
    done_s = stage.submit(group, 0.0)
    assert max(max(durations), sum(durations) / num_workers) <= done_s
    assert done_s <= sum(durations) / num_workers + max(durations)


def test_wrong_programs_hang_until_the_timeout_and_right_ones_never() -> None:
    code = CodeRewards(hanging_share=0.5, timeout_s=30)
    wrong = [code.reward_s(scoring(prompt, correct=False), None) for prompt in range(200)]
    right = [code.reward_s(scoring(prompt, correct=True), None) for prompt in range(200)]
    assert 60 < sum(time_s == 30 for time_s in wrong) < 140
    assert max(right) < 30


def test_a_hanging_program_is_cut_off_early_once_a_correct_one_has_shown_its_needs() -> None:
    code = CodeRewards(hanging_share=1.0, timeout_s=30)
    stage = RewardStage(code, num_workers=4, adaptive_timeout=TimeoutSettings())
    assert stage.submit([scoring(0, correct=False)], 0.0) == 30.0
    learned_s = stage.submit([scoring(0, 1, correct=True)], 0.0)
    assert stage.submit([scoring(0, 2, correct=False)], 100.0) == 100 + max(2.0, 1.5 * learned_s)
    assert stage.submit([scoring(1, 2, correct=False)], 200.0) == 230.0


def test_reference_solutions_limit_even_the_first_program_of_a_prompt() -> None:
    code = CodeRewards(mean_run_s=0.1, hanging_share=1.0, timeout_s=30)
    stage = RewardStage(code, 4, TimeoutSettings(), knows_reference_times=True)
    assert stage.submit([scoring(0, correct=False)], 0.0) == 2.0
    assert RewardStage(code, 4, knows_reference_times=True).submit([scoring(0, correct=False)], 0.0) == 30.0


def test_what_waits_for_an_endpoint_takes_no_worker_from_what_computes() -> None:
    mixed = MixedRewards((MathsRewards(1.0), EndpointRewards(MathsRewards(10.0))))
    stage = RewardStage(mixed, num_workers=1, num_requests=2)
    asked = [scoring(1, index) for index in range(3)]
    assert stage.submit(asked, 0.0) == 20.0, "two requests at a time"
    assert stage.submit([scoring(0), scoring(0, 1)], 0.0) == 2.0
    assert RewardStage(EndpointRewards(MathsRewards(10.0)), 1, num_requests=4).submit(asked, 0.0) == 10.0
