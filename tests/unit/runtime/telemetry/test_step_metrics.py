"""What a step reports of the scoring of its round."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from longshore.api.rollout import Strategy
from longshore_runtime.backends.sums import CorrectionSums, GradientSums
from longshore_runtime.checkpoints.run_state import RunState
from longshore_runtime.elastic.repurposing import RepurposingTimes
from longshore_runtime.rewards.pool import RewardStats
from longshore_runtime.rollout.batch import RoundResult
from longshore_runtime.telemetry.step_metrics import StepTimes, lengths, repurposing_metrics, step_metrics
from longshore_runtime.trajectories.episode import Branch, Episode
from longshore_runtime.trajectories.trajectory import EMPTY, Trajectory, token_ids
from tests.contract.trainers.replicas import make_samples
from tests.unit.runtime.scripted import ScriptedEngines, build, runner
from tests.unit.runtime.test_alarms import timed_out, trained, with_critic, with_responses

PAGE: Final = Path(__file__).parents[4] / "docs" / "reference" / "metrics.md"
TIMES = StepTimes(step_s=9.0, regroup_s=0.0, gen_s=5.0, reward_s=1.0, train_s=2.0, publish_s=1.0)


EPISODE: Final = Episode((Branch(token_ids([1]), None, [], EMPTY),), None, 1.0, 1, 0, 0.0, 0)


@pytest.fixture
def result() -> RoundResult:
    return runner(ScriptedEngines(), build(Strategy.SYNCHRONOUS)).run(draining=False)


def metrics(result: RoundResult) -> dict[str, float]:
    return step_metrics(result, trained(result), TIMES, queue_length=0, num_gpus=2)


def test_a_critic_is_reported_as_verl_does(result: RoundResult) -> None:
    found = step_metrics(result, with_critic(trained(result)), TIMES, queue_length=0, num_gpus=2)
    assert found["critic/vf_explained_var"] == pytest.approx(0.75, abs=1e-3), "half of a return explains 3/4"
    assert (found["critic/vf_loss"], found["critic/vf_clipfrac"]) == (0.5, 0.25)
    assert (found["critic/grad_norm"], found["critic/lr"], found["timing_s/values"]) == (0.7, 1e-5, 1.0)
    assert found["critic/values/max"] == 0.5


def acted(result: RoundResult) -> RoundResult:
    """The same round, and every response an episode."""
    return with_responses(result, lambda one: replace(one, completion=replace(one.completion, episode=EPISODE)))


def documented() -> Iterator[str]:
    """Names of the page as patterns; one without a family continues the name before it, as do its capitals."""
    for row in re.findall(r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        before = ""
        for name in re.findall(r"`([^`]+)`", row):
            if name.startswith("_"):
                name = before.rpartition("_")[0] + name
            elif "/" not in name:
                name = f"{before.rpartition('/')[0]}/{name}"
            before = name
            yield re.sub(r"[A-Z]+", "[^/]+", name)


def test_every_metric_of_a_step_is_in_the_reference(result: RoundResult) -> None:
    """Everything that has a metric happens in the step."""
    scored = replace(
        acted(with_responses(result, lambda one: replace(one, parts={"code": 1.0}))),
        rewards=RewardStats(seconds={"code": 6.0}, num_scored={"code": 4}),
        num_prompt_tokens=1,
    )
    whole = replace(scored, groups=tuple(replace(group, domain="maths") for group in scored.groups))
    step = trained(whole)
    correction = CorrectionSums(1, 1, bounded=1.0, bounded_squared=1.0, num_compared=1)
    updates = (replace(step.updates[0], sums=GradientSums(correction=correction), gradient_difference=0.0),)
    step = with_critic(replace(step, updates=updates, first_gradient_s=1.0, old_log_probs_s=1.0))
    found = step_metrics(whole, step, TIMES, 0, 2, shorter_again=0.5)
    found |= repurposing_metrics(RepurposingTimes(1.0, 1.0, 0, saved_s=1.0))
    optional = {"trainer/gradient_difference", "timing_s/old_log_prob", "selection/shorter_again", "num_turns/mean"}
    assert optional | {"round/prefix_cache_hits", "reward/domain/maths/mean", "rollout_corr/kl"} <= found.keys()
    page = re.compile("|".join(documented()))
    assert [name for name in found if not page.fullmatch(name)] == []


def test_programs_that_broke_their_sandbox_and_faults_are_counted(result: RoundResult) -> None:
    broken = replace(result, rewards=RewardStats(num_faults=7, num_broken=3))
    found = metrics(broken)
    assert (found["reward/broke_sandbox"], found["reward/faults"]) == (3, 7)
    assert metrics(result)["reward/broke_sandbox"] == 0


def test_failed_attempts_at_episodes_are_counted_by_cause(result: RoundResult) -> None:
    assert not any(name.startswith("episodes/") for name in metrics(result)), "the job has no environments"
    found = metrics(replace(acted(result), episode_failures={"timeout": 2, "server_full": 1}))
    failed = {name.rpartition("/")[2]: value for name, value in found.items() if name.startswith("episodes/failed/")}
    assert {cause: value for cause, value in failed.items() if value} == {"timeout": 2, "server_full": 1}
    assert failed["exception"] == 0, "a curve has no gaps"


def test_how_scoring_kept_up_is_reported(result: RoundResult) -> None:
    stats = RewardStats(max_depth=5, max_wait_s=1.5, seconds={"code": 6.0}, num_scored={"code": 4})
    found = metrics(replace(result, rewards=stats))
    assert (found["reward/max_queue_depth"], found["reward/max_wait_s"], found["reward/code/seconds"]) == (5, 1.5, 1.5)


def test_responses_whose_scoring_took_too_long_are_counted(result: RoundResult) -> None:
    num_responses = sum(len(group.responses) for group in result.groups)
    assert metrics(with_responses(result, timed_out))["reward/timed_out"] == num_responses > 0


def test_an_episode_with_several_branches_counts_as_one_response(result: RoundResult) -> None:
    step = trained(result)
    first, *others = step.samples
    samples = [replace(first, reward=9.0, branch=branch, share=0.25) for branch in range(4)] + others
    once, found = (
        step_metrics(result, replace(step, batches=(tuple(batch),)), TIMES, queue_length=0, num_gpus=2)
        for batch in (samples[3:], samples)
    )
    names = [name for name in found if name.startswith("critic/")]
    assert names and [found[name] for name in names] == [once[name] for name in names]
    assert found["response_length/max"] == 4 * once["response_length/max"], "its tokens are those of all branches"
    assert found["response_length/min"] == once["response_length/min"]
    after = RunState().after_step(result, samples, {}, 1)
    assert [one.samples for one in after.kinds.values()] == [len(step.samples)]


def test_lengths_are_those_of_whole_episodes_observations_included() -> None:
    """In verl, too, a response is all that follows the prompt: its lengths come from the attention mask."""
    turn = Trajectory.sampled(0, [4, 5], [-1.0, -1.0])
    (sample,) = make_samples(1)
    assert lengths([replace(sample, trajectory=turn + Trajectory.observed([6, 7, 8]) + turn)]).mean == 7
