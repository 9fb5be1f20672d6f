"""Runs one round: the policy decides, engines sample, rewards score. Nothing is decided here."""

import queue
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

import structlog

from longshore.api.runtime_status import RoundKind
from longshore.policy.draws import Draw
from longshore.policy.engine_load import EngineLoad
from longshore.policy.progress import RoundProgress
from longshore.policy.round import Decision, ResponseFinished, ResponseId
from longshore.policy.round_policy import RoundPolicy
from longshore.policy.selection_bias import SelectionBias, StartedGroup, selection_bias
from longshore_runtime.clock import Clock
from longshore_runtime.errors import Interrupted, TrainerLost, UserError
from longshore_runtime.rollout.batch import RewardStats, RoundResult, ScoredGroup, ScoredResponse
from longshore_runtime.rollout.dispatch import Dispatch, Engines
from longshore_runtime.rollout.events import (
    EngineJoined,
    EngineLost,
    Event,
    GroupScored,
    ResponseScored,
    ResponsesEnded,
    RetryDue,
    RewardEvent,
    RewardPulse,
    StopRequested,
    WeightsLost,
    WorkerLost,
    WorkerReady,
)
from longshore_runtime.types import Completion, EngineStats, FinishReason, Request

log = structlog.get_logger()

_MAX_FRUITLESS_LOSSES: Final = 5
"""An engine that is lost more often without finishing a response has a fault that does not go away."""
_MAX_REJECTED_SHARE: Final = 4
"""A round that rejects more than so many times its batch would never end."""
_MAX_DROPPED_SHARE: Final = 32
"""Likewise for dynamic sampling, when (nearly) all groups have equal rewards."""
NOTHING_KEPT: Final[Mapping[ResponseId, Completion]] = MappingProxyType({})


class Scorer(Protocol):
    """Scores responses as they finish; its workers answer through the driver's events."""

    stats: RewardStats

    def finished(self, response: ResponseId, completion: Completion) -> None:
        """A response can be scored, should its group be served; does not wait."""

    def score(self, draw: Draw, responses: Mapping[ResponseId, Completion]) -> None:
        """A group is served and its rewards are wanted: a GroupScored event follows, or `handle` returns it."""

    def forget(self, draws: Sequence[Draw]) -> None:
        """Nobody wants the rewards of these draws in this round any longer."""

    def handle(self, event: RewardEvent) -> GroupScored | None:
        """A worker answered; returns the group that this completes, or that it makes fail."""


class RoundObserver(Protocol):
    """Whom a round tells what it does not need to know itself."""

    def progressed(self, progress: RoundProgress) -> None:
        """The round has begun, or responses have finished."""

    def trainable(self, group: ScoredGroup) -> None:
        """A group of the batch is accepted and has its rewards; each group once."""

    def happened(self, event: Event) -> None:
        """An event that is not about sampling or scoring."""


class RoundRunner:
    """One use per round."""

    def __init__(
        self,
        policy: RoundPolicy,
        engines: Engines,
        scorer: Scorer,
        events: "queue.SimpleQueue[Event]",
        request_of: Callable[[ResponseId, Completion | None], Request],
        clock: Clock,
        observer: RoundObserver,
        kept: Mapping[ResponseId, Completion] = NOTHING_KEPT,
    ) -> None:
        """`kept`: tokens that responses of this round continue from."""
        self._policy = policy
        self._engines = engines
        self._scorer = scorer
        self._events = events
        self._clock = clock
        self._observer = observer
        self._dispatch = Dispatch(engines, policy.engine_limit, request_of, kept)
        self._kind = RoundKind.FULL
        self._num_groups = 0
        self._kept = dict(kept)
        self._completions = {
            response: completion
            for response, completion in kept.items()
            if completion.finish_reason is not FinishReason.ABORT
        }
        self._unscored: dict[Draw, tuple[int, ...]] = {}
        """Responses of the groups whose rewards are awaited."""
        self._scored: dict[Draw, ScoredGroup] = {}
        self._rejected: dict[Draw, str] = {}
        self._num_dropped = 0
        self._accepted: set[Draw] = set()
        self._num_launched = 0
        self._finished_tokens: list[int] = []
        self._num_aborted = 0
        self._num_losses: Counter[int] = Counter()
        self._stats: dict[int, EngineStats] = {}
        """As of the last responses of each engine: all that is known of one that has retired."""
        self._rollout_ended_s: float | None = None

    def run(self, *, draining: bool) -> RoundResult:
        """Run until every accepted group has its rewards and every request of the round has ended.

        Raises UserError, Interrupted, and TrainerLost when the weights that it samples from are gone.
        """
        started_s, before = self._clock.now_s(), self._engines.stats()
        start = self._policy.start_round(
            draining=draining,
            engines=self._engines.alive(),
            kv_capacity_tokens=min((stats.kv_capacity_tokens for stats in before.values()), default=0),
        )
        self._kind, self._num_groups = start.kind, start.num_groups
        self._execute(start.decision)
        self._observer.progressed(self.progress)
        while not self._complete:
            self._handle(self._events.get())
        assert self._rollout_ended_s is not None
        return self._result(self._rollout_ended_s - started_s, before)

    @property
    def _complete(self) -> bool:
        return self.has_ended and self._dispatch.is_idle and not self._unscored

    @property
    def has_ended(self) -> bool:
        """Whether the batch is complete."""
        return self._rollout_ended_s is not None

    @property
    def num_moved(self) -> int:
        """Responses that went on on another engine."""
        return self._dispatch.num_moved

    @property
    def progress(self) -> RoundProgress:
        """How far the round is."""
        return self._policy.progress

    def retire(self, engines: Collection[int], on_drained: Callable[[], None]) -> None:
        """These engines sample no more in this round; what they run goes on elsewhere, by recomputation."""
        self._dispatch.retire(engines, on_drained)
        self._execute(self._policy.engines_changed(self._dispatch.engines))

    def _handle(self, event: Event) -> None:
        match event:
            case ResponsesEnded():
                self._responses_ended(event)
            case GroupScored():
                self._group_scored(event)
            case ResponseScored() | WorkerReady() | WorkerLost() | RetryDue() | RewardPulse():
                scored = self._scorer.handle(event)
                if scored is not None:
                    self._group_scored(scored)
            case EngineLost():
                self._engine_lost(event)
            case EngineJoined(engine=engine):
                self._dispatch.joined(engine)
                self._execute(self._policy.engines_changed(self._dispatch.engines))
            case WeightsLost(reason=reason):
                if not self._engines.alive():  # Otherwise it speaks of weights before these.
                    raise TrainerLost(reason)
            case StopRequested():
                raise Interrupted("the pod was asked to stop")
            case _:
                self._observer.happened(event)

    def _engine_lost(self, event: EngineLost) -> None:
        """What ran there is sampled again elsewhere; the engine is started anew."""
        engine = event.engine
        log.warning("engine lost", engine=engine, reason=event.reason)
        self._num_losses[engine] += 1
        if self._num_losses[engine] > _MAX_FRUITLESS_LOSSES:
            raise RuntimeError(f"engine {engine} was lost {_MAX_FRUITLESS_LOSSES} times in a row: {event.reason}")
        self._dispatch.lost(engine)
        self._execute(self._policy.engines_changed(self._dispatch.engines))
        self._engines.replace(engine)

    def _responses_ended(self, event: ResponsesEnded) -> None:
        finished: list[ResponseFinished] = []
        for completion in event.completions:
            response = self._dispatch.ended(completion)
            if response is None:
                continue
            self._completions[response] = completion
            if completion.finish_reason is FinishReason.ABORT:
                self._num_aborted += 1
            else:
                self._scorer.finished(response, completion)
                num_tokens = sum(len(run.tokens) for run in completion.runs)
                self._finished_tokens.append(num_tokens)
                finished.append(ResponseFinished(response, completion.engine_step, num_tokens))
        self._stats[event.engine] = event.stats
        self._execute(self._policy.engine_load(event.engine, _load(event.stats)))
        if finished:
            self._num_losses[event.engine] = 0
            self._execute(self._policy.responses_finished(finished))
            self._observer.progressed(self.progress)

    def _group_scored(self, event: GroupScored) -> None:
        draw = event.draw
        indices = self._unscored.pop(draw, None)
        if event.error is not None and event.is_fatal:
            raise UserError(event.error)
        if indices is None:
            return  # The batch was complete without it: its rewards were asked for and are of no use.
        if event.error is not None:
            self._reward_failed(draw, event)
            return
        group = self._scored_group(draw, indices, event)
        zero_variance = len({score.reward for score in event.scores}) == 1
        self._scored[draw] = group
        if draw in self._accepted:
            self._observer.trainable(group)
        self._execute(self._policy.group_trainable(draw, zero_variance=zero_variance))
        if zero_variance and draw not in self._accepted:
            self._group_dropped()

    def _group_dropped(self) -> None:
        self._num_dropped += 1
        if self._num_dropped > _MAX_DROPPED_SHARE * self._num_groups:
            raise UserError(
                f"algorithm.dynamicSampling: {self._num_dropped} groups of one round had equal rewards, which leaves "
                "nothing to train on; use easier or harder prompts, or set it to false"
            )

    def _reward_failed(self, draw: Draw, event: GroupScored) -> None:
        assert event.error is not None
        self._rejected[draw] = event.error
        if len(self._rejected) > _MAX_REJECTED_SHARE * self._num_groups:
            raise UserError(f"reward: {len(self._rejected)} groups of one round had none; the last: {event.error}")
        self._accepted.discard(draw)
        self._rollout_ended_s = None
        self._execute(self._policy.group_rejected(draw))

    def _execute(self, decision: Decision) -> None:
        self._num_launched += len(decision.launch)
        self._dispatch.launch(decision.launch, self._kind)
        self._dispatch.abort(decision.abort)
        for group in decision.score:
            self._unscored[group.draw] = group.responses
            responses = [ResponseId(group.draw, index) for index in group.responses]
            self._scorer.score(group.draw, {response: self._completions[response] for response in responses})
        for group in decision.accepted:
            self._accepted.add(group.draw)
            if group.draw in self._scored:
                self._observer.trainable(self._scored[group.draw])
        if decision.ended and self._rollout_ended_s is None:
            self._rollout_ended_s = self._clock.now_s()
            self._scorer.forget([draw for draw in self._unscored if draw not in self._accepted])
            self._unscored = {draw: indices for draw, indices in self._unscored.items() if draw in self._accepted}

    def _result(self, rollout_s: float, before: Mapping[int, EngineStats]) -> RoundResult:
        end = self._policy.end_round()
        accepted = sorted(end.accepted, key=lambda group: group.draw)
        tokens = {**self._kept, **self._completions}
        after = self._engines.stats()
        # The counters of an engine that was replaced began anew.
        spent_s = [stats.busy_s - before.get(engine, EngineStats()).busy_s for engine, stats in after.items()]
        busy_s = sum(min(max(0.0, seconds), rollout_s) for seconds in spent_s)
        retired = {engine: stats for engine, stats in self._stats.items() if engine not in after}
        deltas = [(before.get(engine, EngineStats()), stats) for engine, stats in {**after, **retired}.items()]
        return RoundResult(
            end=end,
            groups=tuple(self._scored[group.draw] for group in accepted),
            kept={response: tokens[response] for response in end.kept if response in tokens},
            rejected=self._rejected,
            dropped=tuple(self._scored[draw] for draw in end.zero_variance),
            selection=self._selection(),
            rewards=self._scorer.stats,
            finished_tokens=tuple(self._finished_tokens),
            num_launched=self._num_launched,
            num_aborted=self._num_aborted,
            num_moved=self.num_moved,
            rollout_s=rollout_s,
            busy_share=busy_s / (rollout_s * len(spent_s)) if rollout_s > 0 and spent_s else 0.0,
            num_preemptions=sum(max(0, new.num_preemptions - old.num_preemptions) for old, new in deltas),
            num_steps=max((new.num_steps - old.num_steps for old, new in deltas), default=0),
            num_sampled_tokens=sum(max(0, new.num_tokens - old.num_tokens) for old, new in deltas),
        )

    def _selection(self) -> SelectionBias:
        """Lengths of accepted responses against those of all that were started for the same prompts."""
        started: dict[Draw, dict[int, int]] = {draw: {} for draw in self._accepted}
        for response, completion in self._completions.items():
            if response.draw in started:
                started[response.draw][response.index] = sum(len(run.tokens) for run in completion.runs)
        groups = []
        for draw, lengths in started.items():
            scored = self._scored[draw].responses
            accepted = [lengths.pop(one.response.index) for one in scored]
            groups.append(StartedGroup([one.reward for one in scored], accepted, list(lengths.values())))
        return selection_bias(groups)

    def _scored_group(self, draw: Draw, indices: Sequence[int], event: GroupScored) -> ScoredGroup:
        responses = (ResponseId(draw, index) for index in indices)
        return ScoredGroup(
            draw,
            tuple(
                ScoredResponse(response, self._completions[response], score.reward, score.timed_out, score.parts)
                for response, score in zip(responses, event.scores, strict=True)
            ),
            event.domain,
        )


def _load(stats: EngineStats) -> EngineLoad:
    return EngineLoad(stats.num_running, stats.num_waiting, stats.kv_usage, stats.num_preemptions, stats.read_s)
