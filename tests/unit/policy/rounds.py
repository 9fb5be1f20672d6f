"""Drives a round policy as engines and rewards would, and holds every promise against what it did."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from longshore.api.rollout import OnPolicy, PartialRollout, Rollout, Strategy
from longshore.policy.draws import Draw, DrawCursor, MixedDraws, Share
from longshore.policy.presets import round_policy
from longshore.policy.round import AcceptedGroup, Decision, ResponseFinished, ResponseId
from longshore.policy.round_policy import BatchShape, RoundEnd, RoundPolicy

NUM_PROMPTS = 23
MIX = (Share("most", 17, 3.0), Share("least", 6, 1.0))
"""As many prompts in two data sets."""


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
    """Engines that finish the shortest responses first, a few at a time, and rewards that come when they like."""

    def __init__(
        self, policy: RoundPolicy, job: Job, rng: random.Random, *, rejection: float = 0.0, zero_variance: float = 0.0
    ) -> None:
        self._policy = policy
        self._job = job
        self._rng = rng
        self._rejection = rejection
        self._zero_variance = zero_variance if job.dynamic_sampling else 0.0
        self._versions: dict[ResponseId, list[int]] = {}
        """Rounds that sampled tokens of a response."""
        self._finished: set[ResponseId] = set()
        self._number = 0
        self.audit = Audit(job)
        self.launched: list[ResponseId] = []
        """In this round, in order."""
        self.before_each_event: Callable[[], object] = lambda: None

    def use(self, policy: RoundPolicy) -> None:
        """Go on with another policy object, as after a restart."""
        self._policy = policy

    def round(self, *, draining: bool = False) -> RoundEnd:
        """One round to its end."""
        self._number += 1
        self._left: dict[ResponseId, int] = {}
        self._unscored: list[AcceptedGroup] = []
        self._accepted: set[Draw] = set()
        self._ended = False
        self.launched = []
        expected_kind = self._policy.next_kind(draining=draining)
        start = self._policy.start_round(draining=draining, engines=(0, 1), kv_capacity_tokens=300)
        assert start.kind is expected_kind, "the kind of a round is known before it starts"
        self._execute(start.decision)
        while not self._ended or self._unscored:
            self.before_each_event()
            if self._unscored and (not self._left or self._rng.random() < 0.5):
                self._score(self._unscored.pop(self._rng.randrange(len(self._unscored))))
            else:
                self._finish()
        return self._end()

    def _finish(self) -> None:
        assert self._left, "nothing runs, and the batch is not complete"
        shortest = sorted(self._left.items(), key=lambda item: (item[1], item[0]))[: self._rng.randint(1, 3)]
        for response, _ in shortest:
            del self._left[response]
            self._finished.add(response)
        events = [ResponseFinished(response, step, num_tokens=step) for response, step in shortest]
        self._rng.shuffle(events)
        self._execute(self._policy.responses_finished(events))

    def _score(self, group: AcceptedGroup) -> None:
        draw = group.draw
        assert draw in self._accepted or not self._ended
        assert {ResponseId(draw, index) for index in group.responses} <= self._finished, "an unfinished response"
        if self._rng.random() < self._rejection:
            self.audit.consumed[draw] += 1
            self._accepted.discard(draw)
            self._execute(self._policy.group_rejected(draw))
            return
        zero_variance = self._rng.random() < self._zero_variance
        if zero_variance:
            self.audit.consumed[draw] += 1
        self._execute(self._policy.group_trainable(draw, zero_variance=zero_variance))

    def _execute(self, decision: Decision) -> None:
        for response in decision.launch:
            assert response not in self._left and response not in self._finished, "a response was launched twice"
            self._left[response] = self._rng.randint(1, 60)
            self.launched.append(response)
            self._versions.setdefault(response, []).append(self._number)
        for response in decision.abort:
            del self._left[response]
        self._unscored += decision.score
        self._accepted.update(group.draw for group in decision.accepted)
        self._ended = decision.ended
        if self._ended:
            self._unscored = [group for group in self._unscored if group.draw in self._accepted]
        self._assert_gates()

    def _assert_gates(self) -> None:
        width, admission = self._job.frontier_width, self._job.rollout.admission
        running = {response.draw for response in self._left}
        assert width is None or len(running) <= width, "a request outside of the frontier was admitted"
        per_engine = admission.max_active_per_engine
        assert per_engine is None or len(self._left) <= 2 * per_engine, "an engine was given too many requests"

    def _end(self) -> RoundEnd:
        assert not self._left, "the round ended and something still runs"
        end = self._policy.end_round()
        self.audit.ends.append(end)
        self.audit.consumed.update(group.draw for group in end.accepted)
        self.audit.trained += [group.draw for group in end.accepted]
        self.audit.postponed.update(end.deferred)
        for group in end.accepted:
            for index in group.responses:
                self._assert_versions(ResponseId(group.draw, index))
        self._versions = {response: self._versions.get(response, []) for response in end.kept}
        self._finished.intersection_update(end.kept)
        return end

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
        partial_rollout=PartialRollout(group_factor=group_factor, max_policy_versions=max_policy_versions),
    )
