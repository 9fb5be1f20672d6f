"""A round in the driver: policy decisions reach engines and scorer, and losses of engines cost nothing but time."""

import queue
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from longshore.api.rollout import OnPolicy, PartialRollout, Rollout, Strategy
from longshore.api.status import RoundKind
from longshore.api.training import OnRewardError
from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.presets import round_policy
from longshore.policy.round import ResponseId
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore_runtime.errors import Interrupted, TrainerLost, UserError
from longshore_runtime.rollout.events import (
    EngineJoined,
    EngineLost,
    Event,
    GroupScored,
    ResponsesEnded,
    Score,
    StopRequested,
    TrainerGone,
)
from longshore_runtime.rollout.round_runner import RoundRunner
from longshore_runtime.types import Completion, EngineStats, FinishReason, Request, TokenRun


def length(request: Request) -> int:
    """Tokens of the response that a request leads to."""
    return 1 + request.seed % 17


@dataclass
class ScriptedEngines:
    """Advances all requests by one token whenever the driver waits for an event: no thread, no clock."""

    num_engines: int = 2
    script: deque[tuple[int, Event]] = field(default_factory=deque)
    """(step, event): events to put in between."""
    steps: int = 0
    running: dict[int, dict[str, tuple[Request, int]]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    together: bool = False
    """All responses end in the same step."""

    def __post_init__(self) -> None:
        self.running = {engine: {} for engine in range(self.num_engines)}
        self.pending: deque[Event] = deque()

    def alive(self) -> Sequence[int]:
        return list(self.running)

    def add(self, engine: int, requests: Sequence[Request]) -> None:
        for request in requests:
            assert request.request_id not in self.running[engine]
            self.seen.append(request.request_id)
            self.running[engine][request.request_id] = (request, sum(len(run.tokens) for run in request.partial))

    def abort(self, engine: int, request_ids: Sequence[str]) -> None:
        found = [self.running[engine].pop(key) for key in request_ids if key in self.running[engine]]
        ended = [self._completion(request, done, FinishReason.ABORT) for request, done in found]
        self.pending.append(ResponsesEnded(engine, ended))

    def stats(self) -> dict[int, EngineStats]:
        return {engine: EngineStats(num_steps=self.steps) for engine in self.running}

    def replace(self, engine: int) -> None:
        assert engine not in self.running

    def get(self) -> Event:
        while not self.pending:
            self._step()
        return self.pending.popleft()

    def put(self, event: Event) -> None:
        self.pending.append(event)

    def _step(self) -> None:
        self.steps += 1
        assert self.steps < 1000, "the driver waits for an event that never comes"
        while self.script and self.script[0][0] <= self.steps:
            event = self.script.popleft()[1]
            if isinstance(event, EngineLost):
                del self.running[event.engine]
            if isinstance(event, EngineJoined):
                self.running[event.engine] = {}
            self.pending.append(event)
        for engine, requests in self.running.items():
            ended = []
            for key, (request, done) in list(requests.items()):
                requests[key] = (request, done + 1)
                if done + 1 >= (5 if self.together else length(request)):
                    del requests[key]
                    ended.append(self._completion(request, done + 1, FinishReason.STOP))
            if ended:
                self.pending.append(ResponsesEnded(engine, ended))

    def _completion(self, request: Request, done: int, reason: FinishReason) -> Completion:
        old = sum(len(run.tokens) for run in request.partial)
        new = TokenRun(7, tuple(range(old, done)), (-1.0,) * (done - old))
        return Completion(request.request_id, (*request.partial, new), reason, self.steps)


@dataclass
class InstantScorer:
    engines: ScriptedEngines
    failing: set[Draw] = field(default_factory=set)

    def score(self, draw: Draw, completions: Sequence[Completion]) -> None:
        if draw in self.failing:
            self.engines.put(GroupScored(draw, error="reward Maths raised ZeroDivisionError"))
        else:
            self.engines.put(GroupScored(draw, [Score(float(len(one.tokens)), False) for one in completions]))


class StillClock:
    def now_s(self) -> float:
        return 0.0


def request_of(response: ResponseId, kept: Completion | None) -> Request:
    seed = response.draw.index * 7 + response.index * 3
    return Request(str(response), (1, 2), 64, 1.0, seed, kept.runs if kept else ())


def runner(
    engines: ScriptedEngines,
    policy: RoundPolicy,
    scorer: InstantScorer | None = None,
    on_error: OnRewardError = OnRewardError.FAIL,
) -> RoundRunner:
    events: queue.SimpleQueue[Event] = engines  # type: ignore[assignment]
    return RoundRunner(
        policy,
        engines,
        scorer or InstantScorer(engines),
        events,
        request_of,
        StillClock(),
        on_error,
        lambda progress: None,
    )


def build(strategy: Strategy, num_prompts: int = 4) -> RoundPolicy:
    rollout = Rollout(
        strategy=strategy,
        on_policy=OnPolicy.RELAXED if strategy is Strategy.PARTIAL_ROLLOUT else OnPolicy.STRICT,
        partial_rollout=PartialRollout(group_factor=2),
    )
    return round_policy(rollout, BatchShape(num_prompts, 2), DrawCursor(50, seed=0))


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_round_ends_with_an_exact_scored_batch_and_idle_engines(strategy: Strategy) -> None:
    engines = ScriptedEngines()
    result = runner(engines, build(strategy)).run({}, draining=False)
    assert [len(group.responses) for group in result.groups] == [2] * 4
    assert all(one.reward == len(one.completion.tokens) for group in result.groups for one in group.responses)
    assert not any(engines.running.values())


def test_the_batch_does_not_depend_on_the_number_of_engines_when_all_is_accepted() -> None:
    batches = [
        runner(ScriptedEngines(num_engines=n), build(Strategy.SYNCHRONOUS)).run({}, draining=False).groups
        for n in (1, 3)
    ]
    tokens = [[[one.completion.tokens for one in group.responses] for group in groups] for groups in batches]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("step", [1, 2, 5, 9])
def test_what_ran_on_a_lost_engine_is_sampled_again_elsewhere(strategy: Strategy, step: int) -> None:
    engines = ScriptedEngines(script=deque([(step, EngineLost(1, "pod killed"))]))
    result = runner(engines, build(strategy)).run({}, draining=False)
    assert [len(group.responses) for group in result.groups] == [2] * 4


def test_without_any_engine_the_round_waits_for_one_to_return() -> None:
    script: deque[tuple[int, Event]] = deque([(2, EngineLost(0, "pod killed")), (30, EngineJoined(0))])
    engines = ScriptedEngines(num_engines=1, script=script)
    result = runner(engines, build(Strategy.TAIL_BATCHING)).run({}, draining=False)
    assert engines.steps > 30
    assert len(result.groups) == 4


def test_a_group_without_reward_is_replaced_and_counted() -> None:
    engines = ScriptedEngines()
    policy = build(Strategy.SYNCHRONOUS)
    victim = DrawCursor(50, seed=0).take(1)[0]
    scorer = InstantScorer(engines, failing={victim})
    result = runner(engines, policy, scorer, OnRewardError.REPLACE).run({}, draining=False)
    assert result.rejected == {victim: "reward Maths raised ZeroDivisionError"}
    assert len(result.groups) == 4
    assert victim not in {group.draw for group in result.groups}


def test_a_reward_that_raises_fails_the_job_when_asked_to() -> None:
    engines = ScriptedEngines()
    scorer = InstantScorer(engines, failing={DrawCursor(50, seed=0).take(1)[0]})
    with pytest.raises(UserError, match="reward Maths raised"):
        runner(engines, build(Strategy.SYNCHRONOUS), scorer).run({}, draining=False)


def test_partial_responses_continue_from_their_tokens_in_the_next_round() -> None:
    policy = build(Strategy.PARTIAL_ROLLOUT)
    engines = ScriptedEngines()
    first = runner(engines, policy).run({}, draining=False)
    partial = {r: one for r, one in first.kept.items() if one.finish_reason is FinishReason.ABORT and one.tokens}
    assert partial
    second = runner(engines, policy).run(first.kept, draining=False)
    trained = {one.response: one.completion for group in second.groups for one in group.responses}
    continued = partial.keys() & trained.keys()
    assert continued
    for response in continued:
        assert trained[response].tokens[: len(partial[response].tokens)] == partial[response].tokens
        assert len(trained[response].tokens) == length(request_of(response, None))


def test_long_rounds_spread_and_are_accepted_whole() -> None:
    policy = build(Strategy.TAIL_BATCHING)
    kinds = []
    for _ in range(5):
        result = runner(ScriptedEngines(), policy).run({}, draining=False)
        kinds.append(result.end.kind)
    assert kinds == [RoundKind.SHORT] * 4 + [RoundKind.LONG]


def test_a_stop_request_ends_the_round_at_once() -> None:
    engines = ScriptedEngines(script=deque([(3, StopRequested())]))
    with pytest.raises(Interrupted):
        runner(engines, build(Strategy.SYNCHRONOUS)).run({}, draining=False)


def test_a_lost_trainer_ends_the_round_at_once() -> None:
    engines = ScriptedEngines(script=deque([(3, TrainerGone("a trainer replica is gone"))]))
    with pytest.raises(TrainerLost):
        runner(engines, build(Strategy.SYNCHRONOUS)).run({}, draining=False)


def test_an_engine_that_is_lost_again_and_again_ends_the_attempt() -> None:
    script: deque[tuple[int, Event]] = deque()
    for step in range(1, 20, 2):
        script += [(step, EngineLost(0, "out of memory")), (step + 1, EngineJoined(0))]
    engines = ScriptedEngines(num_engines=1, script=script, together=True)
    with pytest.raises(RuntimeError, match="engine 0 was lost 5 times in a row: out of memory"):
        runner(engines, build(Strategy.SYNCHRONOUS)).run({}, draining=False)


def test_a_reward_that_fails_for_every_sample_does_not_go_on_for_ever() -> None:
    engines = ScriptedEngines()
    scorer = InstantScorer(engines, failing={Draw(epoch, index) for epoch in range(9) for index in range(50)})
    with pytest.raises(UserError, match=r"reward: \d+ groups of one round had none; the last: reward Maths"):
        runner(engines, build(Strategy.SYNCHRONOUS), scorer, OnRewardError.REPLACE).run({}, draining=False)


def test_a_round_that_carried_over_responses_complete_launches_nothing() -> None:
    policy = build(Strategy.PARTIAL_ROLLOUT)
    engines = ScriptedEngines(together=True)
    first = runner(engines, policy).run({}, draining=False)
    second = runner(engines, policy).run(first.kept, draining=False)
    assert second.num_launched == 0
    assert [len(group.responses) for group in second.groups] == [2] * 4
