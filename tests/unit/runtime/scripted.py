"""What a round in the driver runs against: engines and a scorer without threads and clocks."""

import queue
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from longshore.api.rollout import (
    AdmissionSettings,
    EngineSettings,
    OnPolicy,
    PartialRolloutSettings,
    Rollout,
    Strategy,
    TailBatchingSettings,
)
from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.progress import RoundProgress
from longshore.policy.reward_queue import ScoreTask
from longshore.policy.round import ResponseId
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore.policy.scale_down import Milestones
from longshore.policy.strategies import round_policy
from longshore.rounds.messages import EngineJoined, EngineLost
from longshore_runtime.backends.engine_protocol import Completion, EngineStats, FinishReason, LiveResponse, Request
from longshore_runtime.rewards.events import GroupScored, RetryDue, RewardEvent, Score
from longshore_runtime.rewards.pool import RewardStats
from longshore_runtime.rollout.batch import ScoredGroup
from longshore_runtime.rollout.events import EngineOutput, Event
from longshore_runtime.rollout.round_runner import NOTHING_KEPT, RoundRunner
from longshore_runtime.trajectories.trajectory import EMPTY, Trajectory

EVERYTHING = AdmissionSettings()
ALL_DRAWS = {Draw(epoch, index) for epoch in range(9) for index in range(50)}


def length(request: Request) -> int:
    """Tokens of the response that a request leads to."""
    return 1 + request.seed % 17


@dataclass
class ScriptedEngines:
    """Advances all requests by one token whenever the driver waits for an event: no thread, no clock. Each is a pod."""

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
        self.gone: set[int] = set()
        self.requests: list[Request] = []

    def serving(self) -> Sequence[int]:
        return list(self.running)

    def add(self, engine: int, requests: Sequence[Request]) -> None:
        for request in requests:
            assert request.request_id not in self.running[engine]
            self.seen.append(request.request_id)
            self.requests.append(request)
            self.running[engine][request.request_id] = (request, len(request.partial))

    def abort(self, engine: int, request_ids: Sequence[str]) -> None:
        there = self.running.get(engine, {})
        found = [there.pop(key) for key in request_ids if key in there]
        ended = [self._completion(request, done, FinishReason.ABORT) for request, done in found]
        self.pending.append(EngineOutput(engine, ended, self._stats))

    def stats(self) -> dict[int, EngineStats]:
        return dict.fromkeys(self.running, self._stats)

    def live(self, timeout_s: float) -> Mapping[int, list[LiveResponse]]:
        return {
            engine: [LiveResponse(len(request.prompt_tokens), done) for request, done in self.running[engine].values()]
            for engine in self.serving()
        }

    def pods_of(self, engine: int) -> tuple[int, ...]:
        return (engine,)

    def num_gpus_of(self, engine: int) -> int:
        return 1

    def is_gone(self, engine: int) -> bool:
        return engine in self.gone

    def replace(self, engine: int) -> None:
        assert engine not in self.running
        self.gone.discard(engine)

    def get(self) -> Event:
        while not self.pending:
            self._step()
        return self.pending.popleft()

    def put(self, event: Event) -> None:
        self.pending.append(event)

    @property
    def _stats(self) -> EngineStats:
        return EngineStats(num_steps=self.steps)

    def _step(self) -> None:
        self.steps += 1
        assert self.steps < 1000, "the driver waits for an event that never comes"
        while self.script and self.script[0][0] <= self.steps:
            event = self.script.popleft()[1]
            if isinstance(event, EngineLost):
                del self.running[event.engine]
                self.gone.add(event.engine)
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
                self.pending.append(EngineOutput(engine, ended, self._stats))

    def _completion(self, request: Request, done: int, reason: FinishReason) -> Completion:
        old = len(request.partial)
        new = Trajectory.sampled(7, range(old, done), [-1.0] * (done - old))
        ended = Completion(request.request_id, request.partial + new, reason, self.steps)
        text = " ".join(map(str, ended.trajectory.tokens))
        return ended if reason is FinishReason.ABORT else ended.with_text(text)


class CountingEngines(ScriptedEngines):
    """Counts the tokens that it samples, on one engine."""

    num_tokens = 0

    def stats(self) -> dict[int, EngineStats]:
        return dict.fromkeys(self.running, self._stats)

    @property
    def _stats(self) -> EngineStats:
        return EngineStats(num_steps=self.steps, num_tokens=self.num_tokens)

    def _step(self) -> None:
        self.num_tokens += len(self.running[0])
        super()._step()


@dataclass
class ScriptedScorer:
    """Rewards are the lengths of the responses, at once, unless stated otherwise."""

    engines: ScriptedEngines
    delay_steps: dict[Draw, int] = field(default_factory=dict)
    equal: set[Draw] = field(default_factory=set)
    """Groups whose rewards are all equal but for rounding."""
    failing: set[Draw] = field(default_factory=set)
    is_fatal: bool = False
    reward: Callable[[int, Completion], float] = lambda place, completion: float(completion.num_tokens)
    scored_draws: list[Draw] = field(default_factory=list)
    forgotten: list[Draw] = field(default_factory=list)
    seen: list[ResponseId] = field(default_factory=list)
    stats: RewardStats = field(default_factory=RewardStats)
    outcomes: dict[Draw, GroupScored] = field(default_factory=dict)
    """Rewards of groups whose event is on its way."""

    def finished(self, response: ResponseId, completion: Completion) -> None:
        assert completion.request_id == str(response)
        self.seen.append(response)

    def score(self, draw: Draw, responses: Mapping[ResponseId, Completion]) -> None:
        self.scored_draws.append(draw)
        self.outcomes[draw] = self._outcome(draw, responses)
        event = RetryDue(ScoreTask(0, ResponseId(draw, 0), ""))
        if draw in self.delay_steps:
            script = [*self.engines.script, (self.engines.steps + self.delay_steps[draw], event)]
            self.engines.script = deque(sorted(script, key=lambda entry: entry[0]))
        else:
            self.engines.put(event)

    def forget(self, draws: Sequence[Draw]) -> None:
        self.forgotten += draws

    def handle(self, event: RewardEvent) -> GroupScored | None:
        assert isinstance(event, RetryDue)
        return self.outcomes.pop(event.task.response.draw, None)  # None: the event is of an earlier round.

    def _outcome(self, draw: Draw, responses: Mapping[ResponseId, Completion]) -> GroupScored:
        if draw in self.failing:
            return GroupScored(draw, error="reward Maths raised ZeroDivisionError", is_fatal=self.is_fatal)
        rewards = [self.reward(place, one) for place, one in enumerate(responses.values())]
        if draw in self.equal:
            rewards = [(0.3, 0.1 + 0.2)[place % 2] for place in range(len(rewards))]
        return GroupScored(draw, [Score(reward, False) for reward in rewards])


@dataclass
class Observer:
    """Remembers what a round reported."""

    groups: list[ScoredGroup] = field(default_factory=list)
    fractions: list[float] = field(default_factory=list)
    others: list[Event] = field(default_factory=list)

    def progressed(self, progress: RoundProgress) -> None:
        self.fractions.append(progress.fraction_finished)

    def milestone(self, progress: RoundProgress) -> None:
        raise AssertionError("the round has no milestones")

    def train_on(self, group: ScoredGroup) -> None:
        self.groups.append(group)

    def on_event(self, event: Event) -> None:
        self.others.append(event)


class StillClock:
    def now_s(self) -> float:
        return 0.0


def request_of(response: ResponseId, kept: Completion | None, turn: int = 0) -> Request:
    seed = response.draw.index * 7 + response.index * 3
    return Request(str(response), (1, 2), 64, 1.0, seed, kept.trajectory if kept else EMPTY)


def by_place(place: int, completion: Completion) -> float:
    """Rewards that differ within every group."""
    return float(place)


def runner(
    engines: ScriptedEngines,
    policy: RoundPolicy,
    scorer: ScriptedScorer | None = None,
    observer: "Observer | None" = None,
    kept: Mapping[ResponseId, Completion] = NOTHING_KEPT,
    milestones: Milestones | None = None,
) -> RoundRunner:
    events: queue.SimpleQueue[Event] = engines  # type: ignore[assignment]
    observer = observer or Observer()
    return RoundRunner(
        policy,
        engines,
        scorer or ScriptedScorer(engines),
        events,
        request_of,
        StillClock(),
        observer,
        kept,
        milestones,
        train_on=observer.train_on,
    )


def build(
    strategy: Strategy,
    num_prompts: int = 4,
    *,
    dynamic_sampling: bool = False,
    admission: AdmissionSettings = EVERYTHING,
    max_num_seqs: int = 8,
) -> RoundPolicy:
    rollout = Rollout(
        strategy=strategy,
        on_policy=OnPolicy.RELAXED if strategy is Strategy.PARTIAL_ROLLOUT else OnPolicy.STRICT,
        # Responses race, too, except with Auto, which begins with the defaults.
        tail_batching=TailBatchingSettings(response_factor=1 if strategy is Strategy.AUTO else 1.25),
        partial_rollout=PartialRolloutSettings(group_factor=2),
        admission=admission,
        engine=EngineSettings(max_num_seqs=max_num_seqs),
    )
    shape = BatchShape(num_prompts, 2)
    return round_policy(rollout, shape, DrawCursor(50, seed=0), dynamic_sampling=dynamic_sampling)


def first_draws(count: int) -> tuple[Draw, ...]:
    """The draws that the first round begins with, in order."""
    return DrawCursor(50, seed=0).take(count)
