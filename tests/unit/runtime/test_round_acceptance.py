"""A round in the driver: which groups make the batch, whenever and however their rewards come; what runs at once."""

from collections import deque
from dataclasses import dataclass

import pytest

from longshore.api.rollout import AdmissionSettings, Strategy
from longshore.policy.draws import DrawCursor
from longshore.policy.group_pipeline import GroupPipeline
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore.policy.selection_bias import selection_bias
from longshore.rounds.messages import EngineJoined, EngineLost
from longshore_runtime.backends.engine_protocol import EngineStats
from longshore_runtime.errors import UserError
from longshore_runtime.rollout.events import EngineOutput, Event
from tests.unit.runtime.scripted import (
    ALL_DRAWS,
    EVERYTHING,
    CountingEngines,
    Observer,
    ScriptedEngines,
    ScriptedScorer,
    build,
    by_place,
    first_draws,
    runner,
)

BOTH_ACCEPTANCES = pytest.mark.parametrize("dynamic_sampling", [False, True], ids=["served", "trainable"])


@BOTH_ACCEPTANCES
@pytest.mark.parametrize("strategy", list(Strategy))
def test_every_group_of_the_batch_becomes_trainable_exactly_once(strategy: Strategy, dynamic_sampling: bool) -> None:
    """Whatever comes between: rewards in another order, groups that fail, groups without spread."""
    engines = ScriptedEngines()
    draws = first_draws(9)
    scorer = ScriptedScorer(engines, {draws[0]: 20, draws[2]: 9}, equal={draws[1]}, failing={draws[3]})
    observer = Observer()
    policy = build(strategy, dynamic_sampling=dynamic_sampling)
    result = runner(engines, policy, scorer, observer).run(draining=False)
    assert sorted(observer.groups, key=lambda group: group.draw) == list(result.groups)
    assert len(result.groups) == 4
    assert {one.response for group in result.groups for one in group.responses} <= set(scorer.seen)


@BOTH_ACCEPTANCES
def test_a_group_whose_rewards_fail_is_replaced_whether_or_not_it_was_accepted(dynamic_sampling: bool) -> None:
    """Served groups are accepted before they are scored; with dynamic sampling after."""
    engines = ScriptedEngines()
    victim, other, replacement = first_draws(3)
    scorer = ScriptedScorer(engines, {victim: 30}, failing={victim})
    policy = build(Strategy.SYNCHRONOUS, num_prompts=2, dynamic_sampling=dynamic_sampling)
    result = runner(engines, policy, scorer).run(draining=False)
    assert result.rejected == {victim: "reward Maths raised ZeroDivisionError"}
    assert {group.draw for group in result.groups} == {other, replacement}
    assert not any(engines.running.values())


def test_groups_without_spread_are_replaced_and_not_counted_in_the_batch() -> None:
    engines = ScriptedEngines()
    flat = first_draws(1)[0]
    policy = build(Strategy.SYNCHRONOUS, num_prompts=2, dynamic_sampling=True)
    result = runner(engines, policy, ScriptedScorer(engines, equal={flat})).run(draining=False)
    assert [group.draw for group in result.dropped] == [flat]
    assert result.end.zero_variance == (flat,)
    assert flat not in {group.draw for group in result.groups}
    assert all(len({one.reward for one in group.responses}) == 2 for group in result.groups)


@pytest.mark.parametrize("fails", [False, True], ids=["rewards", "an error"])
def test_rewards_that_come_after_the_cut_off_are_ignored(fails: bool) -> None:
    """The batch is complete without them: they neither change it nor fail the job, and the round does not wait."""
    engines = ScriptedEngines(together=True)
    late = first_draws(1)[0]
    scorer = ScriptedScorer(engines, {late: 500}, failing={late} if fails else set(), reward=by_place)
    policy = build(Strategy.TAIL_BATCHING, num_prompts=2, dynamic_sampling=True)
    result = runner(engines, policy, scorer).run(draining=False)
    assert scorer.forgotten == [late]
    assert engines.steps < 500
    assert result.end.deferred == (late,)
    answer = engines.script[0][1]
    engines = ScriptedEngines(script=deque([(1, answer)]))
    following = runner(engines, policy, ScriptedScorer(engines, reward=by_place)).run(draining=False)
    assert len(following.groups) == 2
    assert following.rejected == {}


def test_a_round_in_which_no_group_has_spread_ends_the_job_with_a_sentence() -> None:
    engines = ScriptedEngines()
    policy = build(Strategy.SYNCHRONOUS, num_prompts=1, dynamic_sampling=True)
    with pytest.raises(UserError, match=r"algorithm.dynamicSampling: 33 groups of one round had equal rewards"):
        runner(engines, policy, ScriptedScorer(engines, equal=ALL_DRAWS)).run(draining=False)


def most_running(engines: ScriptedEngines, policy: RoundPolicy) -> list[int]:
    """Requests that ran at each step of a round."""
    seen = []
    one_step = engines._step

    def step() -> None:
        seen.append(sum(map(len, engines.running.values())))
        one_step()

    engines._step = step  # type: ignore[method-assign]
    runner(engines, policy).run(draining=False)
    return seen


def test_the_limit_on_requests_follows_the_engines_that_are_there() -> None:
    admission = AdmissionSettings(max_active_per_engine=2)
    whole = most_running(ScriptedEngines(), build(Strategy.SYNCHRONOUS, admission=admission))
    assert max(whole) == 4
    script: deque[tuple[int, Event]] = deque([(1, EngineLost(1, "pod killed"))])
    seen = most_running(ScriptedEngines(script=script), build(Strategy.SYNCHRONOUS, 16, admission=admission))
    assert seen[0] == 4
    assert max(seen[10:]) == 2, "what ran goes on; after that the one engine has two"
    script = deque([(1, EngineLost(1, "pod killed")), (40, EngineJoined(1))])
    seen = most_running(ScriptedEngines(script=script), build(Strategy.SYNCHRONOUS, 16, admission=admission))
    assert (max(seen[10:39]), max(seen[40:])) == (2, 4)


def test_what_engines_report_about_themselves_reaches_the_policy() -> None:
    """With adaptive admission a round starts with a quarter of maxNumSeqs, and more as the caches turn out roomy."""

    @dataclass
    class TellingEngines(ScriptedEngines):
        kv_usage: float = 0.1
        step_s: float = 1.0

        def get(self) -> Event:
            event = super().get()
            if not isinstance(event, EngineOutput):
                return event
            stats = EngineStats(num_running=9, kv_usage=self.kv_usage, read_s=self.steps * self.step_s)
            return EngineOutput(event.engine, event.completions, stats)

    def ran(**engines: float) -> list[int]:
        policy = build(Strategy.SYNCHRONOUS, 8, admission=AdmissionSettings(adaptive=True), max_num_seqs=16)
        return most_running(TellingEngines(num_engines=1, **engines), policy)  # type: ignore[arg-type]

    roomy, full, sudden = ran(), ran(kv_usage=0.99), ran(step_s=0.0)
    assert roomy[0] == full[0] == sudden[0] == 4
    assert max(roomy) > 5
    assert max(full) == 4
    assert max(sudden) == 5, "all reports are of the same second"


def test_the_frontier_of_the_pipeline_goes_by_the_kv_caches_of_the_engines() -> None:
    class CachingEngines(ScriptedEngines):
        def stats(self) -> dict[int, EngineStats]:
            return dict.fromkeys(self.running, EngineStats(kv_capacity_tokens=1))

    policy = GroupPipeline(BatchShape(8, 2), DrawCursor(50, seed=0))
    first, second = (most_running(CachingEngines(num_engines=1), policy) for _ in range(2))
    assert max(first) == 16, "all, while no length is known"
    assert max(second) == 4, "the group that fills the cache, and the next"


def test_a_gate_delays_and_loses_nothing() -> None:
    batches = []
    for admission in (EVERYTHING, AdmissionSettings(frontier_width=1, max_active_per_engine=1)):
        engines = ScriptedEngines()
        policy = build(Strategy.SYNCHRONOUS, admission=admission)
        batches.append(runner(engines, policy).run(draining=False).groups)
    rewards = [[sorted(one.reward for one in group.responses) for group in groups] for groups in batches]
    assert rewards[0] == rewards[1]
    assert [group.draw for group in batches[0]] == [group.draw for group in batches[1]]


def test_accepted_lengths_are_compared_with_all_that_was_started() -> None:
    engines = ScriptedEngines()
    result = runner(engines, build(Strategy.TAIL_BATCHING)).run(draining=False)
    accepted = [one.completion.num_tokens for group in result.groups for one in group.responses]
    bias = selection_bias(result.started)
    assert bias.overall.num_groups == 4
    assert bias.overall.accepted_tokens == sum(accepted) / len(accepted)
    assert bias.overall.length_ratio < 1.0


def test_tokens_that_nothing_is_trained_on_are_a_share_of_those_that_were_sampled() -> None:
    """Responses that had finished count, too, if their draw waits without its tokens; kept tokens are not dropped."""

    def dropped(strategy: Strategy) -> float:
        engines = CountingEngines(num_engines=1)
        result = runner(engines, build(strategy)).run(draining=False)
        tokens = sum(one.completion.num_tokens for group in result.groups for one in group.responses)
        tokens += sum(one.num_tokens for one in result.kept.values())
        assert result.dropped_token_share == pytest.approx(1 - tokens / engines.num_tokens)
        return result.dropped_token_share

    assert dropped(Strategy.SYNCHRONOUS) == 0.0
    assert dropped(Strategy.TAIL_BATCHING) > dropped(Strategy.PARTIAL_ROLLOUT) >= 0.0
