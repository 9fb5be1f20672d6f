"""One round on the virtual clock: drives the round protocol with simulated engines and simulated reward workers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from longshore.api.objectives.advantages import are_equal
from longshore.policy.draws import Draw
from longshore.policy.engine_load import EngineLoad
from longshore.policy.progress import RoundProgress
from longshore.policy.rollout_pace import RolloutPace
from longshore.policy.round import AcceptedGroup, ResponseId
from longshore.policy.round_policy import RoundEnd, RoundPolicy
from longshore.policy.scale_down import Milestones
from longshore.rounds import messages
from longshore.rounds.protocol import RoundProtocol, RoundTotals
from longshore.sim.engine import SimRequest
from longshore.sim.episodes import SimEpisodes
from longshore.sim.events import EventQueue
from longshore.sim.fleet import SimFleet
from longshore.sim.job import SimJob
from longshore.sim.rewards import RewardStage, Scoring


@dataclass(frozen=True)
class TrainableSamples:
    """A group that is accepted and scored."""

    draw: Draw
    num_tokens: tuple[int, ...]
    """Tokens of every sample, prompt included."""


class SimRound:
    """One use per round.

    `on_trainable` gets groups in the order in which the trainer may have them; `on_milestone` may `retire` engines.
    """

    def __init__(
        self,
        job: SimJob,
        policy: RoundPolicy,
        fleet: SimFleet,
        queue: EventQueue,
        workers: RewardStage,
        kept: Mapping[ResponseId, int],
        on_trainable: Callable[[TrainableSamples], None],
        milestones: Milestones | None,
        on_milestone: Callable[["SimRound", RoundProgress], None],
        pace: RolloutPace | None = None,
    ) -> None:
        self._job = job
        self._fleet = fleet
        self._queue = queue
        self._workers = workers
        self._kept_before = kept
        self._on_trainable = on_trainable
        self._on_milestone = on_milestone
        self._policy = policy
        self._pace = pace
        self.episodes = SimEpisodes(job.lengths, job.num_episode_places, queue, self._receive)
        self._protocol = RoundProtocol(policy, milestones, pace, self.episodes.has)
        self._tokens = dict(kept)
        """Tokens of every response that ended, or that earlier rounds kept."""
        self._unscored: list[AcceptedGroup] = []
        """Groups whose rewards wait for the end of the rollout."""
        self._scored_s: dict[ResponseId, float] = {}
        """When the workers are done with a response."""
        self._correct: dict[ResponseId, bool] = {}
        self._on_emptied: Callable[[], None] | None = None
        self._awaited: dict[ResponseId, int] = {}
        """Responses that have ended and count only when they are scored, with the engines that sampled them."""
        self.resumed: set[ResponseId] = set()
        """Responses of earlier rounds that went on in this one."""
        self._num_preemptions_before = fleet.num_preemptions
        self._num_sampled_before = fleet.num_sampled_tokens
        fleet.on_ended = self._ended

    def run(self, *, draining: bool) -> RoundTotals:
        """Run the round from its start to its end."""
        now_s, fleet = self._queue.now_s, self._fleet
        if self._pace is not None:
            steps = {number: engine.step for number, engine in fleet.engines.items()}
            self._pace.begun(self._policy.next_kind(draining=draining), steps, fleet.kv_capacity_tokens, now_s)
        self._perform(
            self._protocol.start(fleet.numbers, now_s, draining=draining, kv_capacity_tokens=fleet.kv_capacity_tokens)
        )
        self._queue.run_until(lambda: self._protocol.is_over)
        return self._protocol.result

    @property
    def num_preemptions(self) -> int:
        """Requests that engines preempted in this round."""
        return self._fleet.num_preemptions - self._num_preemptions_before

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens that engines sampled in this round."""
        return self._fleet.num_sampled_tokens - self._num_sampled_before

    def retire(self, engines: Sequence[int], on_emptied: Callable[[], None]) -> None:
        """Move the requests of these engines to the others, by recomputation; then `on_emptied`."""
        self._on_emptied = on_emptied
        self._receive(messages.EnginesRetired(tuple(engines)))

    def samples_of(self, group: AcceptedGroup) -> tuple[int, ...]:
        """Return the response tokens of a group."""
        return tuple(self._tokens[ResponseId(group.draw, index)] for index in group.responses)

    def corrects(self, group: AcceptedGroup) -> list[bool]:
        """Return which responses of a group get the reward."""
        return [self._is_correct(ResponseId(group.draw, index)) for index in group.responses]

    def num_stale_tokens(self, group: AcceptedGroup) -> int:
        """Return the number of tokens of a group that earlier rounds sampled."""
        return sum(self._kept_before.get(ResponseId(group.draw, index), 0) for index in group.responses)

    def kept(self, end: RoundEnd) -> dict[ResponseId, int]:
        """Return the tokens that the next round continues from."""
        return {response: self._tokens[response] for response in end.kept if response in self._tokens}

    def num_dropped_tokens(self, end: RoundEnd) -> int:
        """Return the number of tokens that are neither trained on nor kept."""
        used = {ResponseId(group.draw, index) for group in end.accepted for index in group.responses}
        used.update(end.kept)
        return sum(count for response, count in self._tokens.items() if response not in used)

    def _receive(self, event: messages.RoundEvent) -> None:
        self._perform(self._protocol.receive(event, self._queue.now_s))

    def _perform(self, commands: Sequence[messages.RoundCommand]) -> None:
        for command in commands:
            match command:
                case messages.AddRequests(engine, responses):
                    self._fleet.add(engine, map(self._request, responses))
                case messages.AbortRequests(engine, responses):
                    self._abort(engine, responses)
                case messages.StartEpisodes(responses):
                    self.episodes.start(responses)
                case messages.GiveTurns(responses):
                    self.episodes.give_turns(responses)
                case messages.CancelEpisodes(responses):
                    self.episodes.cancel(responses)
                case messages.OfferResponse(response) if self._job.rewards.while_rolling_out:
                    if response not in self._scored_s:
                        self._submit(response)
                case messages.ScoreGroup(group):
                    self._unscored.append(group)
                case messages.TrainOnGroup(group):
                    prompt = self._job.lengths.prompt_tokens(group.draw)
                    samples = tuple(prompt + tokens for tokens in self.samples_of(group))
                    self._on_trainable(TrainableSamples(group.draw, samples))
                case messages.MeasureLoad(progress):
                    self._on_milestone(self, progress)
                case messages.AnnounceEmptied():
                    assert self._on_emptied is not None, "engines were retired"
                    self._on_emptied()
                case messages.GiveUp(reason):
                    raise ValueError(reason)
        if self._job.rewards.while_rolling_out or self._protocol.has_batch:
            self._score()

    def _request(self, response: ResponseId) -> SimRequest:
        lengths, kept = self._job.lengths, self._tokens.get(response, 0)
        if self.episodes.has(response.draw):
            observed, total = self.episodes.next_turn(response)
            kept = max(kept, observed)  # More where the turn was moved to another engine.
        else:
            total = lengths.response_tokens(response)
        if response in self._kept_before:
            self.resumed.add(response)
        return SimRequest(response, lengths.prompt_tokens(response.draw), total, kept)

    def _abort(self, number: int, responses: Sequence[ResponseId]) -> None:
        """Stop requests. Nobody waits any longer for the scores of those that have ended."""
        sampled = [response for response in responses if response in self._awaited]
        self._fleet.abort(number, [response for response in responses if response not in self._awaited])
        for response in sampled:
            self._queue.at(self._queue.now_s, partial(self._counts, response))

    def _ended(self, number: int, requests: Sequence[messages.EndedRequest]) -> None:
        self._tokens.update((request.response, request.num_tokens) for request in requests)
        if not self._job.rewards.decide_races:
            self._report(number, requests)
            return
        stopped = [request for request in requests if not request.finished]
        if stopped:
            self._report(number, stopped)
        for request in requests:
            if request.finished:
                self._submit(request.response)
                self._awaited[request.response] = number
                self._queue.at(self._scored_s[request.response], partial(self._counts, request.response))

    def _counts(self, response: ResponseId) -> None:
        """Count a response that ended earlier from now on."""
        number = self._awaited.pop(response, None)
        if number is not None:
            step = self._fleet.engine(number).step
            self._report(number, [messages.EndedRequest(response, self._tokens[response], True, step)])

    def _report(self, number: int, requests: Sequence[messages.EndedRequest]) -> None:
        now_s, engine = self._queue.now_s, self._fleet.engine(number)
        usage = engine.kv_tokens_at(now_s) / engine.kv_capacity_tokens
        load = EngineLoad(engine.num_running, engine.num_waiting, usage, engine.num_preemptions, now_s)
        self._receive(messages.RequestsEnded(number, requests, load))

    def _score(self) -> None:
        waiting, self._unscored = self._unscored, []
        for group in waiting:
            responses = [ResponseId(group.draw, index) for index in group.responses]
            for response in responses:
                if response not in self._scored_s:
                    self._submit(response)
            done_s = max(self._queue.now_s, *(self._scored_s[response] for response in responses))
            rewarded = messages.GroupRewarded(group.draw, zero_variance=are_equal(self.corrects(group)))
            self._queue.at(done_s, partial(self._receive, rewarded))

    def _submit(self, response: ResponseId) -> None:
        """Submit a response as it finishes, when it is open whether its group will be served."""
        scoring = Scoring(response, self._tokens[response], self._is_correct(response))
        self._scored_s[response] = self._workers.submit([scoring], self._queue.now_s)

    def _is_correct(self, response: ResponseId) -> bool:
        if response not in self._correct:
            hardness = self._job.lengths.hardness(response.draw)
            self._correct[response] = self._job.accuracy.is_correct(response, hardness)
        return self._correct[response]
