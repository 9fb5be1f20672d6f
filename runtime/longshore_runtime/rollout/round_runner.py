"""Drive the round protocol with real engines and reward workers. All decisions are the protocol's."""

import hashlib
import queue
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Protocol

import structlog

from longshore.api.algorithm import Algorithm
from longshore.api.objectives.advantages import are_equal
from longshore.policy.draws import Draw
from longshore.policy.engine_load import EngineLoad
from longshore.policy.progress import RoundProgress
from longshore.policy.rollout_pace import RolloutPace
from longshore.policy.round import AcceptedGroup, ResponseId
from longshore.policy.round_policy import RoundPolicy
from longshore.policy.scale_down import Milestones
from longshore.record.history import TimedMessage
from longshore.rounds import messages
from longshore.rounds.protocol import RoundProtocol
from longshore_runtime.backends.engine_protocol import Completion, EngineStats, FinishReason, Request
from longshore_runtime.clock import Clock
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.environments.events import EpisodeGivenUp, EpisodeNews, EpisodeOver, TurnWanted
from longshore_runtime.environments.pod_protocol import FailureCause
from longshore_runtime.errors import ASKED_TO_STOP, Interrupted, TrainerLost, UserError
from longshore_runtime.rewards.events import GroupScored, RewardEvent
from longshore_runtime.rewards.pool import RewardStats
from longshore_runtime.rollout.batch import EngineUse, RoundResult, ScoredGroup, round_result, scored_group
from longshore_runtime.rollout.events import EngineOutput, Event, StopRequested, WeightsLost
from longshore_runtime.trajectories.trajectory import EMPTY

log = structlog.get_logger()

NOTHING_KEPT: Final[Mapping[ResponseId, Completion]] = MappingProxyType({})


class Engines(Protocol):
    """The engines of a job; events go to the queue that they were given."""

    def serving(self) -> Sequence[int]:
        """Return engines that take requests."""

    def add(self, engine: int, requests: Sequence[Request]) -> None:
        """Start requests; does not wait."""

    def abort(self, engine: int, request_ids: Sequence[str]) -> None:
        """Stop requests; they come back as completions with reason ABORT; does not wait."""

    def stats(self) -> Mapping[int, EngineStats]:
        """Return the state of every engine that is alive."""

    def is_gone(self, engine: int) -> bool:
        """Return whether an engine was lost and has not been started again: older news of its loss is none."""

    def replace(self, engine: int) -> None:
        """Restart a lost engine; messages.EngineJoined follows; does not wait."""


class Scorer(Protocol):
    """Scores responses as they finish; its workers answer through the driver's events."""

    @property
    def stats(self) -> RewardStats:
        """Figures of the present round."""

    def finished(self, response: ResponseId, completion: Completion) -> None:
        """Offer a response for scoring, before it is known whether its group is served; does not wait."""

    def score(self, draw: Draw, responses: Mapping[ResponseId, Completion]) -> GroupScored | None:
        """Score a served group; return it if it has its rewards already. Otherwise `handle` returns it later."""

    def forget(self, draws: Sequence[Draw]) -> None:
        """Forget these draws, whose rewards are not needed in this round any more."""

    def handle(self, event: RewardEvent) -> GroupScored | None:
        """Process an event of the scorer; return the group that it completes or fails."""


class Environments(Protocol):
    """Environments in which responses act between their turns; they answer through the driver's events."""

    def has(self, draw: Draw) -> bool:
        """Return whether the responses to a draw are episodes."""

    def start(self, response: ResponseId) -> int:
        """Begin an episode; returns its number, by which its news is known; does not wait."""

    def give_turn(self, number: int, completion: Completion) -> None:
        """Give the turn with which a response ends now to its environment; does not wait."""

    def cancel(self, numbers: Sequence[int]) -> None:
        """End episodes, whose news nobody reads any more; does not wait."""


@dataclass(frozen=True)
class RoundRequests:
    """Makes the requests of one round: a round that is sampled again asks for the same."""

    records: Sequence[PromptRecord]
    """Prompts by index of the draw."""
    algorithm: Algorithm
    purpose: str
    """Purpose that tells the seeds of one round from those of others."""
    temperature: float

    def __call__(self, response: ResponseId, kept: Completion | None, turn: int = 0) -> Request:
        """Return the request for a response, or for a turn of an episode, which goes on from what is kept."""
        partial = kept.trajectory if kept else EMPTY
        return Request(
            request_id=str(response),
            prompt_tokens=self.records[response.draw.index].prompt_tokens,
            max_tokens=self.algorithm.max_response_tokens,
            temperature=self.temperature,
            seed=request_seed(self.algorithm.seed, self.purpose, response, turn),
            partial=partial,
        )


def request_seed(seed: int, purpose: str, response: ResponseId, turn: int = 0) -> int:
    """Return 31 bits from the seed of the job, what is sampled for, which response it is, and which turn of it.

    So every response of every round has its own, and a replay has the same.
    """
    which = f"{response}/{turn}" if turn else str(response)
    digest = hashlib.blake2b(f"{seed}/{purpose}/{which}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


class RoundObserver(Protocol):
    """Receiver of what happens in a round; the round does not depend on it."""

    def progressed(self, progress: RoundProgress) -> None:
        """Note the progress of a round that has begun, or in which responses have finished."""

    def milestone(self, progress: RoundProgress) -> None:
        """Note a milestone, at which the load of the engines decides whether some of them `retire`."""

    def on_event(self, event: Event) -> None:
        """Handle an event that is not about sampling or scoring."""


class RoundRunner:
    """One round: performs commands of the protocol, and passes events to it."""

    def __init__(
        self,
        policy: RoundPolicy,
        engines: Engines,
        scorer: Scorer,
        events: "queue.SimpleQueue[Event]",
        request_of: RoundRequests,
        clock: Clock,
        observer: RoundObserver,
        kept: Mapping[ResponseId, Completion] = NOTHING_KEPT,
        milestones: Milestones | None = None,
        pace: RolloutPace | None = None,
        environments: Environments | None = None,
        train_on: Callable[[ScoredGroup], None] = lambda group: None,
    ) -> None:
        """Run the round until it is over.

        Args:
            environments: where responses act; None: every response is one turn.
            kept: tokens that responses continue from.
            milestones: when the observer's `milestone` is called.
            pace: learns from what the engines do.
            train_on: takes each accepted group, with its rewards, once: `StepWork.train_on`.
        """
        self._policy = policy
        self._pace = pace
        self._engines = engines
        self._scorer = scorer
        self._events = events
        self._request_of = request_of
        self._clock = clock
        self._observer = observer
        self._environments = environments
        self._train_on = train_on
        self._protocol = RoundProtocol(policy, milestones, pace, self._has_environment)
        self._kept = kept
        self._completions = dict(kept)
        """Completion of each response, with all of its tokens so far."""
        self._responses: dict[str, ResponseId] = {}
        """Responses by the ids of their requests."""
        self._episodes: dict[ResponseId, int] = {}
        """Numbers of the episodes that are not over."""
        self._turns: dict[ResponseId, TurnWanted] = {}
        """The present turn of each episode."""
        self._episode_failures: Counter[FailureCause] = Counter()
        self._wanted: dict[Draw, AcceptedGroup] = {}
        """Groups that wait for their rewards."""
        self._scored: dict[Draw, ScoredGroup] = {}
        self._stats: dict[int, EngineStats] = {}
        """Statistics that came with the last responses of each engine."""
        self._messages: list[TimedMessage] = []
        """Messages between protocol and driver, from which the record of the round is built."""
        self._on_emptied: Callable[[], None] | None = None

    def run(self, *, draining: bool) -> RoundResult:
        """Run until every accepted group has its rewards and every request of the round has ended.

        Raises:
            UserError, Interrupted: the job is wrong, or ends.
            TrainerLost: the weights that it samples from are gone.
        """
        started_s, before = self._clock.now_s(), self._engines.stats()
        kind = self._policy.next_kind(draining=draining)
        capacity = min((stats.kv_capacity_tokens for stats in before.values()), default=0)
        if self._pace is not None:
            self._pace.begun(kind, {engine: stats.num_steps for engine, stats in before.items()}, capacity, started_s)
        self._perform(
            self._protocol.start(self._engines.serving(), started_s, draining=draining, kv_capacity_tokens=capacity),
            started_s,
        )
        while not self._protocol.is_over:
            self._handle(self._events.get())
        totals = self._protocol.result
        return round_result(
            totals,
            totals.batch_complete_s - started_s,
            self._completions,
            self._kept,
            self._scored,
            self._scorer.stats,
            EngineUse(before, self._engines.stats(), self._stats),
            self._messages,
            self._episode_failures,
        )

    @property
    def has_batch(self) -> bool:
        """Whether the batch is complete."""
        return self._protocol.has_batch

    @property
    def num_moved(self) -> int:
        """Number of responses that continued on another engine."""
        return self._protocol.num_moved

    def retire(self, engines: Collection[int], on_emptied: Callable[[], None]) -> None:
        """Retire these engines for the rest of the round; their requests continue on others, by recomputation."""
        self._on_emptied = on_emptied
        self._receive(messages.EnginesRetired(tuple(engines)))

    def _handle(self, event: Event) -> None:
        match event:
            case EngineOutput():
                self._engine_output(event)
            case _ if isinstance(event, RewardEvent):
                self._group_scored(self._scorer.handle(event))
            case EpisodeNews(response, number):
                if self._episodes.get(response) == number:  # Otherwise it was cancelled meanwhile.
                    self._episode_news(event)
            case messages.EngineLost(engine, reason) if self._engines.is_gone(engine):
                log.warning("engine lost", engine=engine, reason=reason)
                self._receive(event)
            case messages.EngineLost(engine, reason):
                # Between two rounds it was started again, and may have requests of this one.
                log.warning("engine lost before this round", engine=engine, reason=reason)
            case messages.EngineJoined():
                self._receive(event)
            case WeightsLost(reason=reason):
                if not self._engines.serving():  # Otherwise the event is about earlier weights.
                    raise TrainerLost(reason)
            case StopRequested():
                raise Interrupted(ASKED_TO_STOP)
            case _:
                self._observer.on_event(event)

    def _engine_output(self, event: EngineOutput) -> None:
        requests = []
        for completion in event.completions:
            response = self._responses.get(completion.request_id)
            if response is None or self._protocol.engine_of(response) != event.engine:
                continue  # It belongs to a round that was aborted, or continues elsewhere, where it has other tokens.
            self._completions[response] = completion
            if self._is_cancelled(response):
                self._cut_off(response)
            finished = completion.finish_reason is not FinishReason.ABORT
            requests.append(messages.EndedRequest(response, completion.num_tokens, finished, completion.engine_step))
        self._stats[event.engine] = event.stats
        self._receive(messages.RequestsEnded(event.engine, requests, _load(event.stats)))

    def _has_environment(self, draw: Draw) -> bool:
        return self._environments is not None and self._environments.has(draw)

    def _is_cancelled(self, response: ResponseId) -> bool:
        return self._has_environment(response.draw) and response not in self._episodes

    def _cut_off(self, response: ResponseId) -> None:
        """Note that nothing follows the turns of an episode that was cancelled: they are no finished response."""
        if (turned := self._completions.get(response)) is not None:
            self._completions[response] = replace(turned, finish_reason=FinishReason.ABORT)

    def _episode_news(self, event: EpisodeNews) -> None:
        response = event.response
        self._episode_failures.update(event.failures)
        match event:
            case TurnWanted(turn=turn, trajectory=trajectory):
                self._turns[response] = event
                turned = self._completions.pop(response, None)
                if turn and len(trajectory):
                    assert turned is not None, "a turn was sampled"
                    self._completions[response] = replace(turned, trajectory=trajectory)
                self._receive(messages.EpisodeAnswered(response))
            case EpisodeOver(episode=episode, is_cut=is_cut):
                del self._episodes[response]
                turned = self._completions[response]
                completion = replace(
                    turned,
                    trajectory=episode.branches[-1].trajectory,
                    finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
                    episode=episode,
                ).with_text(episode.last_turn)
                self._completions[response] = completion
                self._receive(messages.EpisodeEnded(response, episode.length, completion.engine_step))
            case EpisodeGivenUp(reason=reason, is_users_mistake=is_users_mistake):
                del self._episodes[response]
                if is_users_mistake:
                    raise UserError(reason)
                self._receive(messages.EpisodeFailed(response, reason))

    def _request(self, response: ResponseId) -> Request:
        kept = self._completions.get(response)
        if (turn := self._turns.get(response)) is None:
            return self._request_of(response, kept)
        request = self._request_of(response, kept, turn.turn)
        return replace(request, prompt_tokens=turn.prompt_tokens, max_tokens=turn.max_tokens)

    def _group_scored(self, scored: GroupScored | None) -> None:
        if scored is None:
            return
        group = self._wanted.pop(scored.draw, None)
        if scored.error is not None and scored.is_fatal:
            raise UserError(scored.error)
        if group is None:
            return  # The batch was complete without this group, so its rewards are not needed.
        if scored.error is not None:
            self._receive(messages.RewardsFailed(scored.draw, scored.error))
            return
        self._scored[scored.draw] = scored_group(group, self._completions, scored)
        zero_variance = are_equal([score.reward for score in scored.scores])
        self._receive(messages.GroupRewarded(scored.draw, zero_variance))

    def _receive(self, event: messages.RoundEvent) -> None:
        now_s = self._clock.now_s()
        self._messages.append((now_s, event))
        self._perform(self._protocol.receive(event, now_s), now_s)

    def _perform(self, commands: Sequence[messages.RoundCommand], now_s: float) -> None:
        self._messages += ((now_s, command) for command in commands)
        scored_at_once = []
        for command in commands:
            match command:
                case messages.AddRequests(engine, responses):
                    self._responses.update((str(response), response) for response in responses)
                    self._engines.add(engine, [self._request(one) for one in responses])
                case messages.AbortRequests(engine, responses):
                    self._engines.abort(engine, [str(response) for response in responses])
                case messages.StartEpisodes(responses):
                    assert self._environments is not None, "they are episodes"
                    self._episodes.update((one, self._environments.start(one)) for one in responses)
                case messages.GiveTurns(responses):
                    assert self._environments is not None, "they are episodes"
                    for response in responses:
                        self._environments.give_turn(self._episodes[response], self._completions[response])
                case messages.CancelEpisodes(responses):
                    assert self._environments is not None, "they are episodes"
                    numbers = [self._episodes.pop(one) for one in responses if one in self._episodes]
                    self._environments.cancel(numbers)
                    for response in responses:
                        self._cut_off(response)
                case messages.ReplaceEngine(engine):
                    self._engines.replace(engine)
                case messages.AnnounceEmptied():
                    assert self._on_emptied is not None, "engines were retired"
                    self._on_emptied()
                case messages.OfferResponse(response):
                    self._scorer.finished(response, self._completions[response])
                case messages.ScoreGroup(group):
                    self._wanted[group.draw] = group
                    responses = tuple(ResponseId(group.draw, index) for index in group.responses)
                    found = self._scorer.score(group.draw, {one: self._completions[one] for one in responses})
                    scored_at_once.append(found)
                case messages.ForgetGroups(draws):
                    self._scorer.forget(draws)
                    for draw in draws:
                        self._wanted.pop(draw, None)
                case messages.TrainOnGroup(group):
                    self._train_on(self._scored[group.draw])
                case messages.ReportProgress(progress):
                    self._observer.progressed(progress)
                case messages.MeasureLoad(progress):
                    self._observer.milestone(progress)
                case messages.GiveUp(reason, is_users_mistake):
                    raise UserError(reason) if is_users_mistake else RuntimeError(reason)
        for scored in scored_at_once:  # Only now, because the protocol may answer with further commands.
            self._group_scored(scored)


def _load(stats: EngineStats) -> EngineLoad:
    return EngineLoad(stats.num_running, stats.num_waiting, stats.kv_usage, stats.num_preemptions, stats.read_s)
