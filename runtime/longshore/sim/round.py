"""One round on the virtual clock: the policy decides, simulated engines sample, simulated workers score.

The counterpart of the runtime's round runner, with the same order of calls on the same policy objects.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from longshore.api.runtime_status import RoundKind
from longshore.policy.draws import Draw
from longshore.policy.engine_load import EngineLoad
from longshore.policy.progress import RoundProgress
from longshore.policy.round import AcceptedGroup, Decision, ResponseFinished, ResponseId
from longshore.policy.round_policy import RoundEnd, RoundPolicy, RoundStart
from longshore.policy.routing import Router
from longshore.sim.engine import Ended, SimRequest
from longshore.sim.events import EventQueue
from longshore.sim.fleet import Fleet
from longshore.sim.job import SimJob
from longshore.sim.rewards import RewardStage, Scoring


@dataclass(frozen=True)
class TrainableSamples:
    """A group that is accepted and scored."""

    draw: Draw
    num_tokens: tuple[int, ...]
    """Of every sample, prompt included."""


@dataclass
class RoundTally:
    """What happened in a round."""

    num_launched: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_zero_variance: int = 0
    num_dropped_tokens: int = 0


@dataclass
class _Progress:
    tokens: dict[ResponseId, int] = field(default_factory=dict)
    """Tokens of every response that ended, or that earlier rounds kept."""
    accepted: dict[Draw, AcceptedGroup] = field(default_factory=dict)
    zero_variance: dict[Draw, bool] = field(default_factory=dict)
    """Of every group that is scored."""


class SimRound:
    """One use per round. `on_trainable` gets groups in the order in which the trainer may have them."""

    def __init__(
        self,
        job: SimJob,
        policy: RoundPolicy,
        fleet: Fleet,
        queue: EventQueue,
        workers: RewardStage,
        kept: Mapping[ResponseId, int],
        on_trainable: Callable[[TrainableSamples], None],
        on_progress: Callable[["SimRound"], None],
    ) -> None:
        self._job = job
        self._policy = policy
        self._fleet = fleet
        self._queue = queue
        self._workers = workers
        self._kept = dict(kept)
        self._on_trainable = on_trainable
        self._on_progress = on_progress
        self._state = _Progress(tokens=dict(kept))
        self._running: set[ResponseId] = set()
        self._aborting: set[ResponseId] = set()
        self._moving: set[ResponseId] = set()
        self._unscored: list[AcceptedGroup] = []
        self._scored_s: dict[ResponseId, float] = {}
        """When the workers are done with a response."""
        self._correct: dict[ResponseId, bool] = {}
        self._router = Router(fleet.numbers, policy.engine_limit)
        self._active = set(fleet.numbers)
        self._kind = RoundKind.FULL
        self._on_drained: Callable[[], None] | None = None
        self._draining: set[int] = set()
        self._is_closed = False
        self.tally = RoundTally()
        self.finished_tokens: list[int] = []
        """Lengths of the responses that ended by themselves."""
        self.ended_s: float | None = None
        self._num_preemptions_before = fleet.num_preemptions
        self._num_sampled_before = fleet.num_sampled_tokens
        fleet.on_ended = self._ended

    def start(self, start: RoundStart) -> None:
        """Execute the first decision of the round."""
        self._kind = start.kind
        self._execute(start.decision)

    @property
    def complete(self) -> bool:
        """The batch is complete and scored, and no request runs any longer."""
        if self.ended_s is None or self._running:
            return False
        return self._state.accepted.keys() <= self._state.zero_variance.keys()

    @property
    def kind(self) -> RoundKind:
        """Kind of the round."""
        return self._kind

    @property
    def num_preemptions(self) -> int:
        """Requests that engines preempted in this round."""
        return self._fleet.num_preemptions - self._num_preemptions_before

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens that engines sampled in this round."""
        return self._fleet.num_sampled_tokens - self._num_sampled_before

    @property
    def progress(self) -> RoundProgress:
        """How far the round is."""
        return self._policy.progress

    @property
    def active_engines(self) -> tuple[int, ...]:
        """Engines that sample."""
        return tuple(sorted(self._active))

    def retire(self, engines: Sequence[int], on_drained: Callable[[], None]) -> None:
        """Move the requests of these engines to the others, by recomputation; then `on_drained`."""
        self._active -= set(engines)
        self._draining, self._on_drained = set(engines), on_drained
        orphans = {number: self._router.lost(number) for number in engines}
        for number, responses in orphans.items():
            moving = [response for response in responses if response not in self._aborting]
            self._moving.update(moving)
            self._fleet.abort(number, moving)
        self._execute(self._policy.engines_changed(self.active_engines))
        self._look_drained()

    def samples_of(self, group: AcceptedGroup) -> tuple[int, ...]:
        """Response tokens of a group."""
        return tuple(self._state.tokens[ResponseId(group.draw, index)] for index in group.responses)

    def num_stale_tokens(self, group: AcceptedGroup) -> int:
        """Tokens of a group that earlier rounds sampled."""
        return sum(self._kept.get(ResponseId(group.draw, index), 0) for index in group.responses)

    def close(self, end: RoundEnd) -> dict[ResponseId, int]:
        """Tokens that the next round continues from; everything else that was sampled is dropped."""
        self._is_closed = True
        tokens = self._state.tokens
        kept = {response: tokens[response] for response in end.kept if response in tokens}
        trained = {ResponseId(group.draw, index) for group in end.accepted for index in group.responses}
        self.tally.num_dropped_tokens = sum(
            count for response, count in tokens.items() if response not in trained and response not in kept
        )
        self.tally.num_zero_variance += len(end.zero_variance)
        return kept

    # Engines --------------------------------------------------------------------------------------------------------

    def _execute(self, decision: Decision) -> None:
        self.tally.num_launched += len(decision.launch)
        self._running.update(decision.launch)
        self._place(decision.launch)
        self._abort(decision.abort)
        for group in decision.accepted:
            self._state.accepted[group.draw] = group
        if decision.ended and self.ended_s is None:
            self.ended_s = self._queue.now_s
        self._score(decision.score)
        for group in decision.accepted:
            self._hand_over(group.draw)

    def _place(self, responses: Sequence[ResponseId]) -> None:
        for engine, placed in self._router.place(responses, self._kind).items():
            self._fleet.add(engine, [self._request(response) for response in placed])

    def _request(self, response: ResponseId) -> SimRequest:
        lengths = self._job.lengths
        total = lengths.response_tokens(response)
        kept = self._state.tokens.get(response, 0)
        return SimRequest(response, lengths.prompt_tokens(response.draw), total, kept)

    def _abort(self, responses: Sequence[ResponseId]) -> None:
        by_engine: dict[int, list[ResponseId]] = {}
        self._aborting.update(responses)
        for response in responses:
            if response in self._moving:
                self._moving.discard(response)
                continue
            engine = self._router.engine_of(response)
            if engine is not None:
                by_engine.setdefault(engine, []).append(response)
        for engine, group in by_engine.items():
            self._fleet.abort(engine, group)

    def _ended(self, engine: int, ended: Sequence[Ended]) -> None:
        finished, moved = [], []
        for end in ended:
            self._router.ended(end.response)
            self._state.tokens[end.response] = end.num_tokens
            is_moving = end.response in self._moving
            self._moving.discard(end.response)
            if is_moving and not end.finished:
                moved.append(end.response)
                continue
            self._running.remove(end.response)
            self._aborting.discard(end.response)
            if end.finished:
                if self._job.rewards.while_rolling_out:
                    self._submit(end.response)
                self.finished_tokens.append(end.num_tokens)
                finished.append(ResponseFinished(end.response, end.engine_step, end.num_tokens))
        self.tally.num_finished += len(finished)
        self.tally.num_aborted += len(ended) - len(finished) - len(moved)
        self._place(moved)
        self._tell_load(engine)
        if finished:
            self._execute(self._policy.responses_finished(finished))
            self._on_progress(self)
        self._look_drained()

    def _look_drained(self) -> None:
        if self._on_drained is not None and all(self._fleet.engines[number].is_idle for number in self._draining):
            on_drained, self._on_drained = self._on_drained, None
            on_drained()

    def _tell_load(self, number: int) -> None:
        """Engines tell their load with the responses that leave them."""
        if not self._job.rollout.admission.adaptive:
            return
        now_s, engine = self._queue.now_s, self._fleet.engines[number]
        usage = engine.kv_tokens_at(now_s) / engine.kv_capacity_tokens
        load = EngineLoad(engine.num_running, engine.num_waiting, usage, engine.num_preemptions, now_s)
        self._execute(self._policy.engine_load(number, load))

    # Rewards --------------------------------------------------------------------------------------------------------

    def _score(self, groups: Sequence[AcceptedGroup]) -> None:
        self._unscored += groups
        if not self._job.rewards.while_rolling_out and self.ended_s is None:
            return
        waiting, self._unscored = self._unscored, []
        for group in waiting:
            responses = [ResponseId(group.draw, index) for index in group.responses]
            for response in responses:
                if response not in self._scored_s:
                    self._submit(response)
            done_s = max(self._queue.now_s, *(self._scored_s[response] for response in responses))
            self._queue.at(done_s, partial(self._scored, group.draw, len(set(self.corrects(group))) == 1))

    def _submit(self, response: ResponseId) -> None:
        """Workers take responses one by one, as they finish; whether its group will be served is open then."""
        scoring = Scoring(response, self._state.tokens[response], self._is_correct(response))
        self._scored_s[response] = self._workers.submit([scoring], self._queue.now_s)

    def corrects(self, group: AcceptedGroup) -> list[bool]:
        """Which responses of a group get the reward."""
        return [self._is_correct(ResponseId(group.draw, index)) for index in group.responses]

    def _is_correct(self, response: ResponseId) -> bool:
        if response not in self._correct:
            hardness = self._job.lengths.hardness(response.draw)
            self._correct[response] = self._job.accuracy.is_correct(response, hardness)
        return self._correct[response]

    def _scored(self, draw: Draw, zero_variance: bool) -> None:
        """Rewards of a group; those of a group that was left over may come when the round is over, and are dropped."""
        if self._is_closed:
            return
        was_accepted = draw in self._state.accepted
        self._state.zero_variance[draw] = zero_variance
        self._execute(self._policy.group_trainable(draw, zero_variance=zero_variance))
        if was_accepted:
            self._hand_over(draw)

    def _hand_over(self, draw: Draw) -> None:
        """Accepted and scored, in whichever order: once the second of both is there, the trainer may have it."""
        group = self._state.accepted.get(draw)
        if group is None or draw not in self._state.zero_variance:
            return
        self.tally.num_zero_variance += self._state.zero_variance[draw]
        prompt = self._job.lengths.prompt_tokens(draw)
        self._on_trainable(TrainableSamples(draw, tuple(prompt + tokens for tokens in self.samples_of(group))))
