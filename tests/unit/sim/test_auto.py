"""What a job with strategy Auto learns of itself: when it asks, what it asks, and what it makes of the answer."""

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from longshore.api.rollout import Handover, Strategy
from longshore.api.round_status import RoundKind
from longshore.api.spec import RLJobSpec
from longshore.policy.auto import RoundChoice
from longshore.policy.decode_rate import DecodeSteps
from longshore.policy.rollout_pace import TimedSteps
from longshore.policy.round_policy import BatchShape
from longshore.rounds.messages import EpisodeLength
from longshore.sim.auto import AutoTuner, Question, StepFacts
from longshore.sim.job import Training
from longshore.sim.simulate import simulate

P0, R0 = 8, 2
CAPACITY = 40_000
BEGIN = RoundChoice()
SYNCHRONOUS = RoundChoice(prompt_factor=1.0)


def spec(*, others: dict[str, Any] | None = None, **rollout: Any) -> RLJobSpec:
    return RLJobSpec.model_validate(
        {
            "model": {"path": "model", "maxContextTokens": 4_096},
            "data": {"path": "data.jsonl"},
            "algorithm": {"steps": 100, "promptsPerStep": P0, "responsesPerPrompt": R0, "maxResponseTokens": 2_048},
            "rollout": {"strategy": "Auto", "engine": {"maxNumSeqs": 16}, **rollout},
            "reward": {"functions": [{"name": "maths", "kind": "Maths"}]},
            "workers": {"replicas": 1, "gpusPerPod": 2},
            "storage": {"claimName": "data"},
        }
        | (others or {})
    )


def step_s(num_running: int, usage: float) -> float:
    """What a decode step of these engines takes."""
    return 0.02 + 0.0001 * num_running + 0.005 * usage


TIMED = tuple(
    TimedSteps(DecodeSteps(50, count, usage), 50 * step_s(count, usage)) for count in (1, 4, 16) for usage in (0.1, 0.5)
)


def facts(kind: RoundKind, groups: list[tuple[int, ...]], num_deferred: int = 0, **others: Any) -> StepFacts:
    usual: dict[str, Any] = {
        "prompt_tokens": 40.0, "timed": TIMED, "tp_size": 1, "kv_capacity_tokens": CAPACITY, "tokens_per_s": 50_000.0,
        "other_s": 0.5,
    }  # fmt: skip
    return StepFacts(kind, tuple(groups), num_deferred=num_deferred, **usual | others)


def period(tokens: int, longest: int) -> Iterator[StepFacts]:
    """Four short rounds and a long one, of a job whose fifth prompt is long."""
    for number in range(1, 5):
        yield facts(RoundKind.SHORT, [(tokens, tokens)] * P0, num_deferred=2 * number)
    yield facts(RoundKind.LONG, [(longest, longest)] * P0)


def tuner(longest: int, *, begin: Any = None) -> AutoTuner:
    learned = AutoTuner(begin or spec())
    for one in period(100, longest):
        learned.observe(one)
    return learned


def question(longest: int, factors: RoundChoice = BEGIN, **rollout: Any) -> Question:
    found = tuner(longest, begin=spec(**rollout)).question(factors)
    assert found is not None
    return found


def test_it_asks_when_a_period_has_ended_and_once() -> None:
    learned = AutoTuner(spec())
    for one in period(100, 900):
        assert learned.question(BEGIN) is None, "long draws still wait: their lengths are not known"
        learned.observe(one)
    assert learned.question(BEGIN) is not None
    assert learned.question(BEGIN) is None


def test_without_speculation_every_round_is_a_period_and_some_are_needed() -> None:
    learned, asked = AutoTuner(spec()), []
    for _ in range(6):
        learned.observe(facts(RoundKind.SHORT, [(100, 900)] * P0))
        asked.append(learned.question(SYNCHRONOUS) is not None)
    assert asked == [False, False, False, True, True, True]


def test_nothing_is_asked_before_the_engines_are_known() -> None:
    learned = AutoTuner(spec())
    for one in period(100, 900):
        learned.observe(facts(one.kind, list(one.groups), one.num_deferred, timed=()))
    assert learned.question(BEGIN) is None


def test_the_question_has_the_lengths_and_the_costs_that_were_seen() -> None:
    job = question(900, SYNCHRONOUS).job
    groups = [job.lengths.responses[index] for index in range(job.num_prompts)]  # type: ignore[attr-defined]
    assert sorted(groups) == [(100, 100)] * (4 * P0) + [(900, 900)] * P0
    assert (job.gpus.num_gpus, job.shape.num_prompts, job.shape.num_responses) == (2, P0, R0)
    one = job.engine_costs.decode_step(4, tp_size=1)
    assert one.step_s(0.5 * CAPACITY) == pytest.approx(step_s(4, 0.5), rel=0.01)
    result = simulate(job, 5)
    assert {round(step.publish_s, 6) for step in result.steps} == {0.5}
    longest_s = 900 * (step_s(4, 0.0) + 0.001)
    mean = sum(step.step_s for step in result.steps) / 5
    train_s = sum(step.num_trained_tokens for step in result.steps) / 5 / (2 * 50_000.0)
    assert 0.5 + train_s < mean <= 0.5 + train_s + longest_s + 0.1


@pytest.mark.parametrize(
    ("prompts_per_step", "num_rounds"), [(8, 800), (250, 800), (500, 400), (1_000, 200), (1_600, 125), (9_000, 120)]
)
def test_a_search_simulates_about_as_many_responses_whatever_the_step(prompts_per_step: int, num_rounds: int) -> None:
    asked = question(900)
    shape = BatchShape(prompts_per_step, num_responses=1)
    assert replace(asked, job=replace(asked.job, shape=shape)).num_rounds == num_rounds


def test_a_tail_of_few_long_prompts_is_worth_speculation_and_alike_ones_are_not() -> None:
    learned = tuner(2_000)
    change = learned.decide(question(2_000, SYNCHRONOUS).answer(), SYNCHRONOUS)
    assert change is not None and change.before == SYNCHRONOUS
    assert change.after.prompt_factor > 1
    assert change.predicted_share < 0.9
    assert str(change).startswith(f"promptFactor 1 -> {change.after.prompt_factor:g}: predicted step 0.")
    assert learned.decide(question(100, SYNCHRONOUS).answer(), SYNCHRONOUS) is None


def test_a_gain_below_the_margin_changes_nothing() -> None:
    found = question(2_000, SYNCHRONOUS, auto={"margin": 0.9}).answer()
    assert tuner(2_000).decide(found, SYNCHRONOUS) is None


def test_it_stays_within_its_bounds() -> None:
    for one in question(2_000, SYNCHRONOUS).answer().ranking:
        assert (one.choice.prompt_factor or 1.0) <= 2
        assert one.choice.strategy in (Strategy.TAIL_BATCHING, Strategy.SYNCHRONOUS)
        assert one.choice.response_factor in (None, 1.0), "responses race only where the job says so"


SEPARATE: dict[str, Any] = {
    "algorithm": {
        "steps": 100,
        "promptsPerStep": P0,
        "responsesPerPrompt": R0,
        "maxResponseTokens": 2_048,
        "promptsPerUpdate": 2,
    },
    "placement": "Disaggregated",
    "trainerWorkers": {"replicas": 1, "gpusPerPod": 2},
}
AFTER_ROUND = RoundChoice(prompt_factor=1.0)


def with_slow_trainers(longest: int, **rollout: Any) -> AutoTuner:
    """Trainers on GPUs of their own, which take about as long as the rollout."""
    learned = AutoTuner(spec(others=SEPARATE, **rollout))
    for one in period(100, longest):
        learned.observe(facts(one.kind, list(one.groups), one.num_deferred, tokens_per_s=100.0))
    return learned


def test_trainers_with_gpus_of_their_own_that_are_slow_begin_while_the_round_runs() -> None:
    learned = with_slow_trainers(900)
    asked = learned.question(AFTER_ROUND)
    assert asked is not None and asked.job.trainer.training is Training.AFTER_ROUND
    change = learned.decide(asked.answer(), AFTER_ROUND)
    assert change is not None and change.after.handover is Handover.PIPELINED
    assert change.predicted_share < 0.9
    assert "handover AfterRound -> Pipelined" in str(change)


@pytest.mark.parametrize("rollout", [{"handover": "AfterRound"}, {"handover": "Pipelined"}])
def test_a_handover_that_the_job_names_stays(rollout: dict[str, Any]) -> None:
    learned = with_slow_trainers(900, **rollout)
    present = RoundChoice(prompt_factor=1.0, handover=Handover(rollout["handover"]))
    asked = learned.question(present)
    assert asked is not None
    assert {one.choice.handover for one in asked.answer().ranking} == {present.handover}
    assert asked.bounds.is_frontier_open is False


def test_a_job_whose_trainers_leave_gpus_idle_is_not_simulated_as_if_they_did_not() -> None:
    few, all_of_them = ({"trainer": {"dataParallelSize": size}} for size in (1, 2))
    with pytest.raises(ValueError, match=r"trainer.dataParallelSize: 1 of the 2 replicas .* are used, .*; remove it"):
        tuner(900, begin=spec(others=few)).question(BEGIN)
    assert tuner(900, begin=spec(others=all_of_them)).question(BEGIN) is not None


def test_what_was_learned_survives_a_checkpoint() -> None:
    learned, resumed = tuner(900), AutoTuner(spec())
    resumed.load_state(json.loads(json.dumps(learned.export_state())))
    assert resumed.question(BEGIN) == learned.question(BEGIN)


def episodes(kind: RoundKind, environment_s: float, num_deferred: int = 0) -> StepFacts:
    """A step of alike episodes."""
    group = (EpisodeLength(100, 4, environment_s),) * R0
    return replace(facts(kind, [], num_deferred), groups=(group,) * P0)


def test_slow_environments_are_worth_speculation_and_are_known_after_a_restart() -> None:
    environments = {"environments": [{"name": "tools", "kind": "Python", "tools": ["tools:one"]}]}
    begin = spec(others=environments | {"data": {"path": "data.jsonl", "chat": {}}})
    learned, resumed = AutoTuner(begin), AutoTuner(begin)
    for number in range(1, 5):
        learned.observe(episodes(RoundKind.SHORT, 1.0, num_deferred=2 * number))
    learned.observe(episodes(RoundKind.LONG, 60.0))
    resumed.load_state(json.loads(json.dumps(learned.export_state())))
    asked = learned.question(SYNCHRONOUS)
    assert asked is not None and asked == resumed.question(SYNCHRONOUS)
    assert (asked.num_turns, asked.job.num_episode_places) == (4.0, 64)
    change = learned.decide(asked.answer(), SYNCHRONOUS)
    assert change is not None and change.after.prompt_factor > 1 and change.predicted_share < 0.9


def test_another_process_can_answer() -> None:
    asked = question(900)
    assert pickle.loads(pickle.dumps(asked)) == asked
