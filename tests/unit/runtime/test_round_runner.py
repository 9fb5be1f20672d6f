"""A round in the driver: policy decisions reach engines and scorer, and losses of engines cost nothing but time."""

from collections import deque

import pytest

from longshore.api.rollout import Strategy
from longshore.rounds.messages import EngineJoined, EngineLost
from longshore_runtime.backends.engine_protocol import Completion, EngineStats, FinishReason
from longshore_runtime.errors import Interrupted, UserError
from longshore_runtime.rollout.events import EngineOutput, Event, ReplicaLost, StopRequested
from longshore_runtime.trajectories.trajectory import Trajectory
from tests.unit.runtime.scripted import (
    ALL_DRAWS,
    Observer,
    ScriptedEngines,
    ScriptedScorer,
    build,
    first_draws,
    length,
    request_of,
    runner,
)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_round_ends_with_an_exact_scored_batch_and_idle_engines(strategy: Strategy) -> None:
    engines = ScriptedEngines()
    result = runner(engines, build(strategy)).run(draining=False)
    assert [len(group.responses) for group in result.groups] == [2] * 4
    assert all(one.reward == one.completion.num_tokens for group in result.groups for one in group.responses)
    assert not any(engines.running.values())


def test_the_batch_does_not_depend_on_the_number_of_engines_when_all_is_accepted() -> None:
    batches = [
        runner(ScriptedEngines(num_engines=n), build(Strategy.SYNCHRONOUS)).run(draining=False).groups for n in (1, 3)
    ]
    tokens = [
        [[one.completion.trajectory.tokens.tolist() for one in group.responses] for group in groups]
        for groups in batches
    ]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("step", [1, 2, 5, 9])
def test_what_ran_on_a_lost_engine_is_sampled_again_elsewhere(strategy: Strategy, step: int) -> None:
    engines = ScriptedEngines(script=deque([(step, EngineLost(1, "pod killed"))]))
    result = runner(engines, build(strategy)).run(draining=False)
    assert [len(group.responses) for group in result.groups] == [2] * 4


def test_without_any_engine_the_round_waits_for_one_to_return() -> None:
    script: deque[tuple[int, Event]] = deque([(2, EngineLost(0, "pod killed")), (30, EngineJoined(0))])
    engines = ScriptedEngines(num_engines=1, script=script)
    result = runner(engines, build(Strategy.TAIL_BATCHING)).run(draining=False)
    assert engines.steps > 30
    assert len(result.groups) == 4


def test_of_an_engine_that_was_replaced_what_the_new_one_did_counts() -> None:
    counters = deque(
        [
            EngineStats(num_steps=500, num_tokens=9000, num_preemptions=1, busy_s=60.0),
            EngineStats(num_steps=7, num_tokens=30, num_preemptions=2, busy_s=0.5),
        ]
    )

    class Replaced(ScriptedEngines):
        def stats(self) -> dict[int, EngineStats]:
            """Before the round, and after it."""
            return {0: counters.popleft()}

    result = runner(Replaced(num_engines=1), build(Strategy.SYNCHRONOUS)).run(draining=False)
    assert (result.num_steps, result.num_sampled_tokens, result.num_preemptions) == (7, 30, 2)


def test_a_reward_that_raises_fails_the_job_when_asked_to() -> None:
    engines = ScriptedEngines()
    scorer = ScriptedScorer(engines, failing=set(first_draws(1)), is_fatal=True)
    with pytest.raises(UserError, match="reward Maths raised"):
        runner(engines, build(Strategy.SYNCHRONOUS), scorer).run(draining=False)


def test_partial_responses_continue_from_their_tokens_in_the_next_round() -> None:
    policy = build(Strategy.PARTIAL_ROLLOUT)
    engines = ScriptedEngines()
    first = runner(engines, policy).run(draining=False)
    partial = {r: one for r, one in first.kept.items() if one.finish_reason is FinishReason.ABORT and one.num_tokens}
    assert partial
    second = runner(engines, policy, kept=first.kept).run(draining=False)
    trained = {one.response: one.completion for group in second.groups for one in group.responses}
    continued = partial.keys() & trained.keys()
    assert continued
    for response in continued:
        assert (
            trained[response].trajectory.tokens.tolist()[: partial[response].num_tokens]
            == partial[response].trajectory.tokens.tolist()
        )
        assert trained[response].num_tokens == length(request_of(response, None))


def test_a_stop_request_ends_the_round_at_once() -> None:
    engines = ScriptedEngines(script=deque([(3, StopRequested())]))
    with pytest.raises(Interrupted):
        runner(engines, build(Strategy.SYNCHRONOUS)).run(draining=False)


def test_a_lost_trainer_is_reported_and_the_round_goes_on() -> None:
    lost = ReplicaLost("a trainer replica is gone")
    observer = Observer()
    engines = ScriptedEngines(script=deque([(3, lost)]))
    result = runner(engines, build(Strategy.SYNCHRONOUS), observer=observer).run(draining=False)
    assert observer.others == [lost]
    assert len(result.groups) == 4


def test_an_engine_that_is_lost_again_and_again_ends_the_attempt() -> None:
    script: deque[tuple[int, Event]] = deque()
    for step in range(1, 20, 2):
        script += [(step, EngineLost(0, "out of memory")), (step + 1, EngineJoined(0))]
    engines = ScriptedEngines(num_engines=1, script=script, together=True)
    with pytest.raises(RuntimeError, match="engine 0 was lost 6 times without finishing a response: out of memory"):
        runner(engines, build(Strategy.SYNCHRONOUS)).run(draining=False)


def test_a_reward_that_fails_for_every_sample_does_not_go_on_for_ever() -> None:
    engines = ScriptedEngines()
    with pytest.raises(UserError, match=r"reward: rewards of \d+ groups of a round failed. Last error: reward Maths"):
        runner(engines, build(Strategy.SYNCHRONOUS), ScriptedScorer(engines, failing=ALL_DRAWS)).run(draining=False)


def test_a_round_that_carried_over_responses_complete_launches_nothing() -> None:
    policy = build(Strategy.PARTIAL_ROLLOUT)
    engines = ScriptedEngines(together=True)
    first = runner(engines, policy).run(draining=False)
    second = runner(engines, policy, kept=first.kept).run(draining=False)
    assert second.num_launched == 0
    assert [len(group.responses) for group in second.groups] == [2] * 4


class Undead(ScriptedEngines):
    """Engines that go on with what they have whatever is said of them; their tokens are their numbers."""

    def _step(self) -> None:
        self.steps += 1
        assert self.steps < 1000, "the driver waits for an event that never comes"
        while self.script and self.script[0][0] <= self.steps:
            self.pending.append(self.script.popleft()[1])
        for engine, requests in self.running.items():
            ended = []
            for key, (request, done) in list(requests.items()):
                requests[key] = (request, done + 1)
                if done + 1 >= length(request) + (2 if engine == 0 else 0):
                    del requests[key]
                    trajectory = Trajectory.sampled(7, [engine] * (done + 1), [-1.0] * (done + 1))
                    ended.append(Completion(key, trajectory, FinishReason.STOP, self.steps))
            if ended:
                self.pending.append(EngineOutput(engine, ended, self._stats))

    def replace(self, engine: int) -> None:
        """It is never there again."""


@pytest.mark.parametrize("is_news", [True, False])
def test_a_response_has_the_reward_of_its_own_tokens_although_two_engines_sample_it(is_news: bool) -> None:
    """A loss that is reported after the engine was started again must not take its requests from it."""
    engines = Undead()
    engines.gone = {0} if is_news else set()
    engines.put(EngineLost(0, "pod killed"))
    scorer = ScriptedScorer(engines, delay_steps=dict.fromkeys(ALL_DRAWS, 4))
    scorer.reward = lambda _, completion: float(completion.trajectory.tokens[0])
    result = runner(engines, build(Strategy.SYNCHRONOUS), scorer).run(draining=False)
    pairs = {(one.reward, one.completion.trajectory.tokens[0]) for group in result.groups for one in group.responses}
    assert pairs == ({(1.0, 1)} if is_news else {(0.0, 0), (1.0, 1)})
    assert (len(engines.seen) > len(set(engines.seen))) == is_news, "only a loss has responses sampled again"
