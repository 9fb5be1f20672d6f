"""Engines leave a round: what they run goes on elsewhere with the tokens that it has; nothing is lost or doubled."""

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.rollout import Strategy
from longshore.rounds.messages import EngineJoined, EngineLost
from longshore_runtime.rollout.batch import RoundResult
from longshore_runtime.rollout.events import Event, GradientsDone
from longshore_runtime.rollout.round_runner import RoundRunner
from tests.properties import examples
from tests.unit.runtime.scripted import Observer, ScriptedEngines, build, runner

MOMENT = GradientsDone(0, None)
"""Any event that a round only passes on."""
NUM_PROMPTS = 8


@dataclass
class Retiring(Observer):
    """Has an engine leave the round at the moment that the script tells."""

    engine: int = 1
    runner: RoundRunner | None = None
    engines: ScriptedEngines | None = None
    emptied_at_step: int | None = None
    left_behind: list[int] = field(default_factory=list)

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        assert self.runner is not None
        self.runner.retire([self.engine], self._emptied)

    def _emptied(self) -> None:
        assert self.engines is not None and self.emptied_at_step is None, "announced once"
        self.emptied_at_step = self.engines.steps
        self.left_behind.append(len(self.engines.running.get(self.engine, {})))


def run(
    strategy: Strategy, script: list[tuple[int, Event]], num_engines: int = 2
) -> tuple[RoundResult, Retiring, ScriptedEngines]:
    engines = ScriptedEngines(num_engines=num_engines, script=deque(sorted(script, key=lambda entry: entry[0])))
    retiring = Retiring(engines=engines)
    retiring.runner = runner(engines, build(strategy, num_prompts=NUM_PROMPTS), observer=retiring)
    return retiring.runner.run(draining=False), retiring, engines


@pytest.mark.parametrize("step", [1, 2, 5, 8])
def test_what_ran_on_a_retired_engine_continues_from_its_tokens(step: int) -> None:
    still, _, _ = run(Strategy.SYNCHRONOUS, [])
    moved, retiring, _ = run(Strategy.SYNCHRONOUS, [(step, MOMENT)])
    assert moved.num_moved > 0
    assert moved.num_aborted == 0, "to move is not to be cut off"
    assert retiring.left_behind == [0]
    tokens = [
        [
            [one.completion.trajectory.tokens.tolist() for one in group.responses]
            for group in sorted(result.groups, key=lambda g: g.draw)
        ]
        for result in (still, moved)
    ]
    assert [sorted(group) for group in tokens[0]] == [sorted(group) for group in tokens[1]]


def test_the_tokens_of_a_moved_response_all_have_the_policy_version_of_the_round() -> None:
    result, _, _ = run(Strategy.SYNCHRONOUS, [(4, MOMENT)])
    runs = [one.completion.trajectory.runs for group in result.groups for one in group.responses]
    assert max(map(len, runs)) == 2
    assert {run.policy_version for parts in runs for run in parts} == {7}


def test_an_engine_without_requests_is_empty_at_once() -> None:
    _, retiring, engines = run(Strategy.SYNCHRONOUS, [(15, MOMENT)])
    assert retiring.emptied_at_step == 15
    assert not engines.running[1]


def test_an_engine_that_is_lost_while_it_retires_is_not_waited_for_and_not_replaced() -> None:
    result, retiring, _ = run(Strategy.SYNCHRONOUS, [(3, MOMENT), (4, EngineLost(1, "pod killed"))])
    assert retiring.emptied_at_step is not None
    assert len(result.groups) == NUM_PROMPTS


@settings(deadline=None, max_examples=examples(60))
@given(
    st.sampled_from(list(Strategy)),
    st.integers(1, 16),
    st.none() | st.tuples(st.integers(1, 16), st.sampled_from([0, 1, 2]), st.integers(1, 5)),
)
def test_whatever_is_lost_around_a_retirement_the_batch_is_exact(
    strategy: Strategy, moment: int, loss: tuple[int, int, int] | None
) -> None:
    script: list[tuple[int, Event]] = [(moment, MOMENT)]
    if loss is not None:
        step, engine, away_steps = loss
        script.append((step, EngineLost(engine, "pod killed")))
        if engine != 1:
            script.append((step + away_steps, EngineJoined(engine)))
    result, _, engines = run(strategy, script, num_engines=3)
    assert [len({one.response for one in group.responses}) for group in result.groups] == [2] * NUM_PROMPTS
    assert len({group.draw for group in result.groups}) == NUM_PROMPTS
    assert not any(engines.running.values()), "nothing runs on"
