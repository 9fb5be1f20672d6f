"""Drives a round policy as engines and rewards would, and holds every promise against what it did."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from longshore.api.rollout import OnPolicy, PartialRolloutSettings, Rollout, Strategy
from longshore.policy.decode_rate import DecodeRate, DecodeSteps
from longshore.policy.draws import Draw, DrawCursor, MixedDraws, Share
from longshore.policy.engine_load import EngineLoad
from longshore.policy.rollout_pace import RolloutPace
from longshore.policy.round import AcceptedGroup, ResponseId
from longshore.policy.round_policy import BatchShape, RoundEnd, RoundPolicy
from longshore.policy.strategies import round_policy
from longshore.record.history import TimedMessage
from longshore.rounds import messages
from longshore.rounds.protocol import RoundProtocol

NUM_PROMPTS = 23
MIX = (Share("most", 17, 3.0), Share("least", 6, 1.0))
"""As many prompts in two data sets."""
_RATE = DecodeRate()
_RATE.add(DecodeSteps(1, num_running=1, kv_usage=0.0), 1.0)
QUIET = EngineLoad(num_running=0, num_waiting=0, kv_usage=0.5, num_preemptions=0, at_s=0.0)


@dataclass(frozen=True)
class Job:
    """What the promises depend on."""

    rollout: Rollout
    shape: BatchShape
    groups_per_update: int | None = None
    dynamic_sampling: bool = False
    is_mixed: bool = False

    def policy(self) -> RoundPolicy:
        """A policy of this job, at its beginning."""
        return round_policy(
            self.rollout,
            self.shape,
            MixedDraws(MIX, seed=5) if self.is_mixed else DrawCursor(NUM_PROMPTS, seed=5),
            groups_per_update=self.groups_per_update,
            dynamic_sampling=self.dynamic_sampling,
        )

    @property
    def max_postponements(self) -> int | None:
        """Rounds that may leave a draw over."""
        match self.rollout.strategy:
            case Strategy.PARTIAL_ROLLOUT:
                return self.rollout.partial_rollout.max_policy_versions - 1
            case Strategy.REORDER_ROLLOUT:
                return self.rollout.reorder_rollout.max_postponements
            case _:
                return None

    @property
    def frontier_width(self) -> int | None:
        """Groups that may be in service at once on both engines, as far as the job says."""
        per_engine = self.rollout.admission.frontier_width
        return None if per_engine is None else 2 * per_engine


@dataclass
class Audit:
    """What became of every draw over a run."""

    job: Job
    consumed: Counter[Draw] = field(default_factory=Counter)
    """Trained, of zero variance, or rejected."""
    trained: list[Draw] = field(default_factory=list)
    postponed: Counter[Draw] = field(default_factory=Counter)
    ends: list[RoundEnd] = field(default_factory=list)

    def assert_invariants(self, policy: RoundPolicy) -> None:
        """Every draw is consumed once and what is not consumed waits; batches are exact; the bounds hold."""
        assert all(count == 1 for count in self.consumed.values()), "a draw was consumed twice"
        cursor = policy.export_state()["cursor"]
        if self.job.is_mixed:
            num_taken = sum(cursor["taken"].values())
        else:
            num_taken = cursor["epoch"] * NUM_PROMPTS + cursor["offset"]
        assert num_taken == len(self.consumed) + policy.num_deferred, "a draw was lost"
        bound = self.job.max_postponements
        assert bound is None or all(count <= bound for count in self.postponed.values()), "put off too often"
        for end in self.ends:
            assert len({group.draw for group in end.accepted}) == len(end.accepted)
            assert all(
                len(group.responses) == len(set(group.responses)) == self.job.shape.num_responses
                for group in end.accepted
            ), "a group of another size than R0"


class FakeRollout:
    """Engines that finish the shortest responses first, a few at a time, and rewards that come when they like.

    `upheaval`: share of events by which an engine is lost, returns or retires; responses may then end while they stop.
    `episodes`: responses to every other draw act in an environment, which answers when it likes and may fail.
    """

    def __init__(
        self,
        policy: RoundPolicy,
        job: Job,
        rng: random.Random,
        *,
        rejection: float = 0.0,
        zero_variance: float = 0.0,
        upheaval: float = 0.0,
        episodes: bool = False,
    ) -> None:
        self._policy = policy
        self._job = job
        self._rng = rng
        self._rejection = rejection
        self._zero_variance = zero_variance if job.dynamic_sampling else 0.0
        self._upheaval = upheaval
        self._has_episodes = episodes and not job.rollout.keeps_tokens
        self._versions: dict[ResponseId, list[int]] = {}
        """Rounds that sampled tokens of a response."""
        self._finished: set[ResponseId] = set()
        self._number = 0
        self.audit = Audit(job)
        self.launched: list[ResponseId] = []
        """In this round, in order."""
        self.served: dict[Draw, list[ResponseId]] = {}
        """Responses of every group whose rewards were wanted."""
        self.messages: list[TimedMessage] = []
        """Messages of this round, in order; every event comes a second after the one before it."""
        self.before_each_event: Callable[[], object] = lambda: None

    def use(self, policy: RoundPolicy) -> None:
        """Go on with another policy object, as after a restart."""
        self._policy = policy

    def round(self, *, draining: bool = False) -> RoundEnd:
        """One round to its end."""
        self._number += 1
        self._left: dict[ResponseId, int] = {}
        self._engine_of: dict[ResponseId, int] = {}
        self._stopped: list[messages.RequestsEnded] = []
        self._unscored: list[AcceptedGroup] = []
        self._acting: list[ResponseId] = []
        self._turns: dict[ResponseId, int] = {}
        """Turns that an episode still has."""
        self._lost: list[int] = []
        self._retired: tuple[int, ...] = ()
        self.num_emptied = 0
        self.launched = []
        self.messages = []
        self._now_s = 0.0
        expected_kind = self._policy.next_kind(draining=draining)
        pace = RolloutPace()
        pace.begun(expected_kind, {0: 0, 1: 0}, 300, self._now_s)
        self._protocol = RoundProtocol(self._policy, pace=pace, has_environment=self._has_environment)
        self._perform(self._protocol.start((0, 1), self._now_s, draining=draining, kv_capacity_tokens=300))
        pace.milestone(self._now_s)
        while not self._protocol.is_over:
            self.before_each_event()
            event = self._next_event()
            self._now_s += 1.0
            self.messages.append((self._now_s, event))
            self._perform(self._protocol.receive(event, self._now_s))
        assert pace.replayed_s(_RATE, {0}) >= 0.0 and pace.replayed_s(_RATE) >= 0.0, "whatever happened can be replayed"
        if not self._upheaval and self._protocol.result.finished_tokens:
            assert pace.rest_s > 0.0, "the batch waited for something after the milestone, responses and episodes alike"
        assert not self._left and not self._stopped and not self._acting, "the round ended and something still runs"
        assert self.num_emptied == len(self._retired), "engines that have emptied are announced once"
        end = self._protocol.result.end
        assert end.kind is expected_kind, "the kind of a round is known before it starts"
        self.totals = self._protocol.result
        self._end(end)
        return end

    def _next_event(self) -> messages.RoundEvent:
        if self._upheaval and self._rng.random() < self._upheaval:
            return self._shake()
        if self._stopped and not (self._upheaval and self._left and self._rng.random() < 0.5):
            return self._reported(self._stopped.pop(0))
        if self._acting and (not self._left or self._rng.random() < 0.5):
            return self._answer(self._acting.pop(self._rng.randrange(len(self._acting))))
        if self._lost and not self._left and not self._unscored:
            return messages.EngineJoined(self._lost.pop())
        if self._unscored and (not self._left or self._rng.random() < 0.5):
            return self._score(self._unscored.pop(self._rng.randrange(len(self._unscored))))
        return self._finish()

    def _shake(self) -> messages.RoundEvent:
        """A lost engine returns, or one retires, or one is lost with all that it has."""
        if self._lost:
            return messages.EngineJoined(self._lost.pop())
        if not self._retired and self._rng.random() < 0.5:
            self._retired = (self._rng.randrange(2),)
            return messages.EnginesRetired(self._retired)
        engine = self._rng.randrange(2)
        self._lost.append(engine)
        self._left = {response: step for response, step in self._left.items() if self._engine_of[response] != engine}
        self._stopped = [ended for ended in self._stopped if ended.engine != engine]
        return messages.EngineLost(engine, "so")

    def _finish(self) -> messages.RoundEvent:
        """The shortest responses of an engine."""
        assert self._left, "nothing runs, and the batch is not complete"
        engine = self._engine_of[min(self._left, key=self._length)]
        there = [response for response in self._left if self._engine_of[response] == engine]
        shortest = sorted(there, key=self._length)[: self._rng.randint(1, 3)]
        self._rng.shuffle(shortest)
        return self._reported(self._ended(engine, shortest, finished=True))

    def _reported(self, event: messages.RequestsEnded) -> messages.RequestsEnded:
        self._finished.update(
            request.response
            for request in event.requests
            if request.finished and not self._has_environment(request.response.draw)
        )
        return event

    def _has_environment(self, draw: Draw) -> bool:
        return self._has_episodes and draw.index % 2 == 0

    def _answer(self, response: ResponseId) -> messages.RoundEvent:
        """The environment of an episode does something: only now, after whatever turns it has had."""
        assert response not in self._left, "it is with its environment and on an engine"
        if self._rng.random() < self._rejection / 4:
            self.audit.consumed[response.draw] += 1
            return messages.EpisodeFailed(response, "so")
        turns = self._turns.setdefault(response, self._rng.randint(1, 3))
        if turns == 0:
            self._finished.add(response)
            return messages.EpisodeEnded(response, messages.EpisodeLength(1, 1, 0.5), 1)
        self._turns[response] -= 1
        return messages.EpisodeAnswered(response)

    def _score(self, group: AcceptedGroup) -> messages.RoundEvent:
        draw = group.draw
        assert {ResponseId(draw, index) for index in group.responses} <= self._finished, "an unfinished response"
        if self._rng.random() < self._rejection:
            self.audit.consumed[draw] += 1
            return messages.RewardsFailed(draw, "so")
        zero_variance = self._rng.random() < self._zero_variance
        if zero_variance:
            self.audit.consumed[draw] += 1
        return messages.GroupRewarded(draw, zero_variance)

    def _perform(self, commands: list[messages.RoundCommand]) -> None:
        self.messages += ((self._now_s, command) for command in commands)
        for command in commands:
            match command:
                case messages.AddRequests(engine, responses):
                    self._add(engine, responses)
                case messages.AbortRequests(engine, responses):
                    self._stop(engine, responses)
                case messages.StartEpisodes(responses) | messages.GiveTurns(responses):
                    assert not self._finished.intersection(responses), "an episode goes on after its end"
                    self._acting += responses
                case messages.CancelEpisodes(responses):
                    self._acting = [response for response in self._acting if response not in responses]
                case messages.AnnounceEmptied():
                    self.num_emptied += 1
                    assert not {self._engine_of[response] for response in self._left} & set(self._retired)
                case messages.ScoreGroup(group):
                    self._unscored.append(group)
                    self.served[group.draw] = [ResponseId(group.draw, index) for index in group.responses]
                case messages.ForgetGroups(draws):
                    self._unscored = [group for group in self._unscored if group.draw not in draws]
        self._assert_gates()

    def _stop(self, engine: int, responses: Sequence[ResponseId]) -> None:
        """Each comes back as an event; with `upheaval`, some of them end by themselves first."""
        late = [response for response in responses if self._upheaval and self._rng.random() < 0.3]
        stopped = [response for response in responses if response not in late]
        ended = self._ended(engine, stopped, finished=False), self._ended(engine, late, finished=True)
        self._stopped += [event for event in ended if event.requests]

    def _add(self, engine: int, responses: Sequence[ResponseId]) -> None:
        assert engine not in self._lost and engine not in self._retired, "a request for an engine that is not there"
        for response in responses:
            assert response not in self._left and response not in self._finished, "a response was launched twice"
            self._left[response] = self._rng.randint(1, 60)
            self._engine_of[response] = engine
            if response not in self._turns or response not in self.launched:
                self.launched.append(response)
            versions = self._versions.setdefault(response, [])
            if self._number not in versions:
                versions.append(self._number)

    def _ended(self, engine: int, responses: Sequence[ResponseId], *, finished: bool) -> messages.RequestsEnded:
        requests = []
        for response in responses:
            step = self._left.pop(response)
            requests.append(messages.EndedRequest(response, step, finished, step))
        return messages.RequestsEnded(engine, requests, QUIET)

    def _length(self, response: ResponseId) -> tuple[int, ResponseId]:
        return self._left[response], response

    def _assert_gates(self) -> None:
        width, admission = self._job.frontier_width, self._job.rollout.admission
        running = {response.draw for response in self._left}
        assert width is None or len(running) <= width, "a request outside of the frontier was admitted"
        per_engine = admission.max_active_per_engine
        assert per_engine is None or len(self._left) <= 2 * per_engine, "an engine was given too many requests"
        has_other_gates = admission.adaptive or self._job.rollout.strategy in (Strategy.GROUP_PIPELINE, Strategy.AUTO)
        if self._protocol.is_over or self._upheaval or width is not None or has_other_gates:
            return
        progress = self._policy.progress
        is_full = per_engine is not None and len(self._left) == 2 * per_engine
        assert is_full or progress.num_held == progress.num_returning == 0, "a gate holds what an engine has room for"

    def _end(self, end: RoundEnd) -> None:
        self.audit.ends.append(end)
        self.audit.consumed.update(group.draw for group in end.accepted)
        self.audit.trained += [group.draw for group in end.accepted]
        self.audit.postponed.update(end.deferred)
        for group in end.accepted:
            for index in group.responses:
                self._assert_versions(ResponseId(group.draw, index))
        self._versions = {response: self._versions.get(response, []) for response in end.kept}
        self._finished.intersection_update(end.kept)

    def _assert_versions(self, response: ResponseId) -> None:
        versions = self._versions[response]
        rollout = self._job.rollout
        if not rollout.keeps_tokens:
            assert versions == [self._number], "a strict round mixes policy versions"
        if rollout.strategy is Strategy.PARTIAL_ROLLOUT:
            assert len(versions) <= rollout.partial_rollout.max_policy_versions, "too many policy versions"


def relaxed_partial(group_factor: float = 2.0, max_policy_versions: int = 5) -> Rollout:
    """Partial rollout as APRIL runs it."""
    return Rollout(
        on_policy=OnPolicy.RELAXED,
        strategy=Strategy.PARTIAL_ROLLOUT,
        partial_rollout=PartialRolloutSettings(group_factor=group_factor, max_policy_versions=max_policy_versions),
    )
