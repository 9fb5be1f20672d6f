"""One round without I/O: events go in, commands come out. The runtime, the simulator and the tests are its drivers.

    protocol = RoundProtocol(policy)
    perform(protocol.start(engines, now_s))
    while not protocol.is_over:
        event, now_s = wait()
        perform(protocol.receive(event, now_s))
    protocol.result

The policy decides. The protocol knows where requests are (`rounds.requests`), which rewards are awaited, and when the
round is over. Commands are performed in their order.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from longshore.policy.draws import Draw
from longshore.policy.rollout_pace import RolloutPace
from longshore.policy.round import AcceptedGroup, Decision, ResponseFinished, ResponseId
from longshore.policy.round_policy import RoundEnd, RoundPolicy
from longshore.policy.scale_down import Milestones
from longshore.rounds import messages
from longshore.rounds.requests import Requests

MAX_FRUITLESS_LOSSES: Final = 5
"""An engine that is lost more often without finishing a response has a fault that does not go away."""
MAX_REJECTED_BATCHES: Final = 4
"""Batches whose number of groups a round may reject; one that rejects more would never end."""
MAX_DROPPED_BATCHES: Final = 32
"""The same for dynamic sampling, when (nearly) all groups have equal rewards."""


@dataclass(frozen=True)
class RoundTotals:
    """A round that is over."""

    end: RoundEnd
    batch_complete_s: float
    """When the batch was complete; aborted requests and rewards may come later."""
    finished_tokens: tuple[int, ...]
    """Lengths of the finished responses, accepted or not."""
    rejected: Mapping[Draw, str]
    """Draws replaced because their rewards could not be computed, and why."""
    num_launched: int
    num_aborted: int
    """Launched responses that were cut off."""
    num_moved: int
    """Responses that continued on another engine."""
    num_given_up: int
    """Episodes that failed for good: each has replaced its group."""


class RoundProtocol:
    """One use per round."""

    def __init__(
        self,
        policy: RoundPolicy,
        milestones: Milestones | None = None,
        pace: RolloutPace | None = None,
        has_environment: Callable[[Draw], bool] = lambda draw: False,
    ) -> None:
        """Prepare the protocol of one round.

        Args:
            milestones: when engines may retire; None: none do.
            pace: notes what the benefit gate replays afterwards; nothing here reads it.
            has_environment: whether responses to a draw are episodes.
        """
        self._policy = policy
        self._milestones = milestones
        self._pace = pace
        self._has_environment = has_environment
        self._requests: Requests | None = None
        self._commands: list[messages.RoundCommand] = []
        """Commands of the call that is running."""
        self._now_s = 0.0
        self._num_groups = 0
        self._batch_complete_s: float | None = None
        self._accepted: dict[Draw, AcceptedGroup] = {}
        self._unscored: dict[Draw, None] = {}
        """Groups whose rewards are awaited."""
        self._rewarded: set[Draw] = set()
        self._rejected: dict[Draw, str] = {}
        self._num_given_up = 0
        self._num_dropped = 0
        self._num_launched = 0
        self._num_aborted = 0
        self._finished_tokens: list[int] = []
        self._num_losses: Counter[int] = Counter()
        """Losses of each engine since it last finished a response."""
        self._totals: RoundTotals | None = None

    def start(
        self, engines: Collection[int], now_s: float, *, draining: bool = False, kv_capacity_tokens: int = 0
    ) -> list[messages.RoundCommand]:
        """Begin on these engines; `draining` and `kv_capacity_tokens` as of `RoundPolicy.start_round`."""
        self._now_s = now_s
        start = self._policy.start_round(draining=draining, engines=engines, kv_capacity_tokens=kv_capacity_tokens)
        self._requests = Requests(
            tuple(engines), start.kind, self._policy.engine_limit, self._emit, self._has_environment
        )
        self._num_groups = start.num_groups
        self._execute(start.decision)
        self._progressed()
        return self._finish_call()

    def receive(self, event: messages.RoundEvent, now_s: float) -> list[messages.RoundCommand]:
        """Process an event and return commands; events after the end of the round change nothing."""
        if self.is_over:
            return []
        self._now_s = now_s
        match event:
            case messages.RequestsEnded():
                self._requests_ended(event)
            case messages.GroupRewarded(draw, zero_variance):
                self._group_rewarded(draw, zero_variance)
            case messages.RewardsFailed(draw, reason):
                self._rewards_failed(draw, reason)
            case messages.EpisodeAnswered() | messages.EpisodeEnded() | messages.EpisodeFailed():
                if self._placed.is_acting(event.response):
                    self._episode_news(event)
            case messages.EngineLost(engine, reason):
                self._engine_lost(engine, reason)
            case messages.EngineJoined(engine):
                self._placed.joined(engine)
                self._engines_changed()
            case messages.EnginesRetired(engines):
                self._engines_retired(engines)
        return self._finish_call()

    @property
    def is_over(self) -> bool:
        """Whether the batch is complete and has its rewards, and every request has ended."""
        return self._totals is not None

    def engine_of(self, response: ResponseId) -> int | None:
        """Return the engine that samples a response; None: it has ended, or waits for one."""
        return self._placed.engine_of(response)

    @property
    def result(self) -> RoundTotals:
        """Totals of the finished round."""
        assert self._totals is not None, "the round is not over"
        return self._totals

    @property
    def has_batch(self) -> bool:
        """Whether the batch is complete: nothing needs to be sampled any longer."""
        return self._batch_complete_s is not None

    @property
    def num_moved(self) -> int:
        """Responses that continued on another engine so far."""
        return self._placed.num_moved

    @property
    def _placed(self) -> Requests:
        assert self._requests is not None, "start comes first"
        return self._requests

    def _emit(self, command: messages.RoundCommand) -> None:
        self._commands.append(command)
        if self._pace is not None and isinstance(command, messages.AddRequests):
            self._pace.placed(command.engine, command.responses, self._now_s)

    def _finish_call(self) -> list[messages.RoundCommand]:
        self._placed.announce_emptied()
        if self._batch_complete_s is not None and self._placed.is_idle and not self._unscored:
            self._totals = RoundTotals(
                end=self._policy.end_round(),
                batch_complete_s=self._batch_complete_s,
                finished_tokens=tuple(self._finished_tokens),
                rejected=self._rejected,
                num_launched=self._num_launched,
                num_aborted=self._num_aborted,
                num_moved=self.num_moved,
                num_given_up=self._num_given_up,
            )
        commands, self._commands = self._commands, []
        return commands

    def _requests_ended(self, event: messages.RequestsEnded) -> None:
        if self._pace is not None and not self.has_batch:
            steps = {one.response: one.engine_step for one in event.requests}
            finished_now = {one.response for one in event.requests if one.finished}
            turned = {response for response in finished_now if self._has_environment(response.draw)}
            self._pace.left(event.engine, steps, finished_now, event.load, self._now_s, turned)
        ended, turned_now = self._placed.ended(event.engine, event.requests)
        if turned_now:
            self._execute(self._policy.episodes_act(turned_now))
        finished = [one for one in ended if one.finished]
        self._num_aborted += len(ended) - len(finished)
        self._execute(self._policy.engine_load(event.engine, event.load))
        if any(one.finished for one in event.requests):
            self._num_losses[event.engine] = 0
        if finished:
            self._finished([ResponseFinished(one.response, one.engine_step, one.num_tokens) for one in finished])

    def _episode_news(self, event: messages.EpisodeAnswered | messages.EpisodeEnded | messages.EpisodeFailed) -> None:
        match event:
            case messages.EpisodeAnswered(response):
                self._placed.episode_answered(response)
                self._execute(self._policy.episode_answered(response))
            case messages.EpisodeEnded(response, length, engine_step):
                self._placed.episode_ended(response)
                if self._pace is not None and not self.has_batch:
                    self._pace.episode_ended(response, self._now_s)
                self._finished([ResponseFinished(response, engine_step, length.num_tokens)])
            case messages.EpisodeFailed(response, reason):
                self._num_given_up += 1
                # This ends the episode with the rest of its group.
                self._reject(response.draw, reason, of="environments: the episodes")

    def _finished(self, responses: Sequence[ResponseFinished]) -> None:
        for one in responses:
            self._finished_tokens.append(one.num_tokens)
            self._emit(messages.OfferResponse(one.response))
        self._execute(self._policy.responses_finished(responses))
        self._progressed()

    def _group_rewarded(self, draw: Draw, zero_variance: bool) -> None:
        if draw not in self._unscored:
            return  # The batch was complete without it.
        del self._unscored[draw]
        self._rewarded.add(draw)
        if draw in self._accepted:
            self._emit(messages.TrainOnGroup(self._accepted[draw]))
        self._execute(self._policy.group_rewarded(draw, zero_variance=zero_variance))
        if zero_variance and draw not in self._accepted:
            self._num_dropped += 1
            if self._num_dropped > MAX_DROPPED_BATCHES * self._num_groups:
                reason = (
                    f"algorithm.dynamicSampling: {self._num_dropped} groups of one round had equal rewards, which "
                    "leaves nothing to train on; use easier or harder prompts, or set it to false"
                )
                self._emit(messages.GiveUp(reason, is_users_mistake=True))

    def _rewards_failed(self, draw: Draw, reason: str) -> None:
        if draw not in self._unscored:
            return
        del self._unscored[draw]
        self._reject(draw, reason)

    def _reject(self, draw: Draw, reason: str, of: str = "reward: rewards") -> None:
        """Replace a group whose rewards, or an episode of which, failed for good."""
        self._rejected[draw] = reason
        if len(self._rejected) > MAX_REJECTED_BATCHES * self._num_groups:
            message = f"{of} of {len(self._rejected)} groups of a round failed. Last error: {reason}"
            self._emit(messages.GiveUp(message, is_users_mistake=True))
        # An accepted group that loses its rewards leaves a batch that was complete: the policy admits another draw.
        self._accepted.pop(draw, None)
        self._batch_complete_s = None
        self._execute(self._policy.group_rejected(draw))

    def _engine_lost(self, engine: int, reason: str) -> None:
        self._num_losses[engine] += 1
        if self._num_losses[engine] > MAX_FRUITLESS_LOSSES:
            message = (
                f"engine {engine} was lost {self._num_losses[engine]} times without finishing a response: {reason}"
            )
            self._emit(messages.GiveUp(message, is_users_mistake=False))
        if self._pace is not None:
            self._pace.engine_lost()
        self._placed.lost(engine)
        self._engines_changed()
        self._emit(messages.ReplaceEngine(engine))

    def _engines_retired(self, engines: tuple[int, ...]) -> None:
        if self._milestones is not None:
            self._milestones.close()
        if self._pace is not None:
            self._pace.engines_left(engines, self._now_s)
        self._placed.retire(engines)
        self._engines_changed()

    def _engines_changed(self) -> None:
        self._execute(self._policy.engines_changed(self._placed.engines))

    def _progressed(self) -> None:
        progress = self._policy.progress
        self._emit(messages.ReportProgress(progress))
        if self._milestones is not None and not self.has_batch and self._milestones.is_due(progress):
            if self._pace is not None:
                self._pace.milestone(self._now_s)
            self._emit(messages.MeasureLoad(progress))

    def _execute(self, decision: Decision) -> None:
        """Carry out a decision, and what follows where it launches episodes, which are on no engine at first."""
        while episodes := self._carry_out(decision):
            decision = self._policy.episodes_act(episodes)

    def _carry_out(self, decision: Decision) -> tuple[ResponseId, ...]:
        """Carry out a decision; return the episodes that it launched."""
        self._num_launched += len(decision.launch)
        episodes = self._placed.launch(decision.launch)
        self._placed.resume(decision.resume)
        self._num_aborted += self._placed.abort(decision.abort)
        for group in decision.score:
            self._unscored[group.draw] = None
            self._emit(messages.ScoreGroup(group))
        for group in decision.accepted:
            self._accepted[group.draw] = group
            if group.draw in self._rewarded:
                self._emit(messages.TrainOnGroup(group))
        if decision.has_batch and self._batch_complete_s is None:
            self._batch_complete_s = self._now_s
            useless = tuple(draw for draw in self._unscored if draw not in self._accepted)
            self._unscored = {draw: None for draw in self._unscored if draw in self._accepted}
            self._emit(messages.ForgetGroups(useless))
        return tuple(one for one in episodes if self._placed.is_acting(one))
