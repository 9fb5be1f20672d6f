"""One round as a state machine: groups are admitted, responses are launched and finish, enough groups are accepted.

Every round policy is this machine with its own plan (`RoundPlan`) and its own treatment of what is left over.

    admitted -> launched -> served -> accepted                     acceptance by Served
                            served -> trainable -> accepted        acceptance by Trainable
                                      trainable -> zero variance   consumed without a gradient, replaced
                                      rejected                     its rewards failed: replaced

A response that acts in an environment is on no engine meanwhile, and no gate counts it. Its next turn passes the gates
again, before what its group has not launched.

Every event costs amortised logarithmic time per response that it concerns.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from longshore.policy.admission_queue import AdmissionQueue, Group
from longshore.policy.draws import Draw
from longshore.policy.progress import RoundProgress
from longshore.policy.round_plan import Acceptance, AdmittedDraw, Gates, RoundPlan


class ResponseId(NamedTuple):
    """One sampled output of a draw. A tuple, as `Draw`."""

    draw: Draw
    index: int  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self.draw}-{self.index}"


@dataclass(frozen=True)
class ResponseFinished:
    """Event: a response ended. Among events that arrive together, (engine step, response) decides the order."""

    response: ResponseId
    engine_step: int
    num_tokens: int = 0
    """Length of the whole response."""


@dataclass(frozen=True)
class AcceptedGroup:
    """A group that the step may train on: exactly R0 responses, in the order in which they finished."""

    draw: Draw
    responses: tuple[int, ...]


@dataclass(frozen=True)
class Decision:
    """Work that the driver of the round has to do now."""

    launch: tuple[ResponseId, ...] = ()
    resume: tuple[ResponseId, ...] = ()
    """Episodes whose next turn an engine may sample now."""
    abort: tuple[ResponseId, ...] = ()
    score: tuple[AcceptedGroup, ...] = ()
    """Groups whose rewards are wanted from here on."""
    accepted: tuple[AcceptedGroup, ...] = ()
    """Groups newly accepted for training."""
    has_batch: bool = False
    """The batch is complete: nothing of this round needs to run any longer."""


@dataclass(frozen=True)
class Leftover:
    """A group that a round did not accept.

    `running` names every response that has not finished, launched or not; none of a served group.
    """

    draw: Draw
    finished: tuple[int, ...]
    running: tuple[int, ...]


@dataclass
class _Outcome:
    """A decision that grows."""

    abort: list[ResponseId] = field(default_factory=list)
    score: list[AcceptedGroup] = field(default_factory=list)
    accepted: list[AcceptedGroup] = field(default_factory=list)


class Round:
    """Accepts the first `plan.num_groups` groups that qualify. Draws that are due must be among them."""

    def __init__(self, plan: RoundPlan, num_responses: int, acceptance: Acceptance, gates: Gates) -> None:
        self._kind = plan.kind
        self._num_groups = plan.num_groups
        self._num_candidates = plan.num_candidates
        self._num_responses = num_responses
        self._acceptance = acceptance
        self._gates = gates
        self._due = set(plan.due)
        self._open: dict[Draw, Group] = {}
        """Admitted and not consumed."""
        self._qualified: deque[Draw] = deque()
        """Groups that have all but a place in the batch: the free places are reserved for draws that are due."""
        self._accepted: dict[Draw, AcceptedGroup] = {}
        self._zero_variance: list[Draw] = []
        self._queue = AdmissionQueue()
        self._num_admitted = 0
        self._num_launched = self._num_finished = 0
        self._num_running = 0
        """Responses that engines have."""
        self._num_held = 0
        """Responses to launch that wait for a gate."""
        self._num_returning = 0
        """Launched responses that wait for a gate."""
        self._num_live = 0
        """Groups that can still be accepted."""
        self._was_cut_off = False

    def admit(self, admissions: Iterable[AdmittedDraw]) -> Decision:
        """Start groups; one that already has enough finished responses is served at once."""
        outcome = _Outcome()
        for admission in admissions:
            draw = admission.draw
            assert draw not in self._open and draw not in self._accepted, f"draw {draw} admitted twice"
            assert len(admission.launch) + len(admission.finished) >= self._num_responses
            self._num_admitted += 1
            group = Group(self._num_admitted, deque(admission.launch), finished=list(admission.finished))
            self._open[draw] = group
            self._num_live += 1
            self._num_held += len(admission.launch)
            self._queue.push(draw, group)
            if len(admission.finished) >= self._num_responses:
                self._serve(draw, outcome)
        return self._decide(outcome)

    def responses_finished(self, events: Sequence[ResponseFinished]) -> Decision:
        """Take finished responses; those of groups that need no more came too late and are ignored."""
        outcome = _Outcome()
        served: list[Draw] = []
        for event in sorted(events, key=lambda event: (event.engine_step, event.response)):
            draw, index = event.response.draw, event.response.index
            group = self._open.get(draw)
            if group is None or index not in group.running:
                continue
            del group.running[index]
            group.finished.append(index)
            self._num_finished += 1
            if group.is_closed:
                continue
            if index in group.away:
                group.away.discard(index)
            else:
                self._num_running -= 1
            if len(group.finished) == self._num_responses:
                served.append(draw)
        for draw in served:
            self._serve(draw, outcome)
        return self._decide(outcome)

    def episodes_act(self, responses: Iterable[ResponseId]) -> Decision:
        """Launch others while these are with their environments; a group without any on engines leaves the frontier."""
        for draw, index in responses:
            group = self._open[draw]
            assert index in group.running and index not in group.away, "it was on an engine, or has just been launched"
            group.away.add(index)
            self._num_running -= 1
            if not group.num_on_engines:
                self._queue.leave(draw, group)
        return self._decide(_Outcome())

    def episode_answered(self, response: ResponseId) -> Decision:
        """Sample the next turn of an episode, as soon as the gates let it through."""
        group = self._open[response.draw]
        assert response.index in group.away, "it was with its environment"
        group.returning.append(response.index)
        self._num_returning += 1
        self._queue.push(response.draw, group)
        return self._decide(_Outcome())

    def rewarded(self, draw: Draw, *, zero_variance: bool) -> Decision:
        """Decide about a group whose rewards have come, if groups are accepted by their rewards."""
        outcome = _Outcome()
        if self._acceptance is Acceptance.TRAINABLE and self._is_served(draw):
            if zero_variance:
                self._consume(draw)
                self._zero_variance.append(draw)
                self._fill(outcome)
            else:
                self._qualify(draw, outcome)
        return self._decide(outcome)

    def reject(self, draw: Draw) -> Decision:
        """Give up a group whose rewards failed, or an episode of which did: another takes its place."""
        outcome = _Outcome()
        group = self._open.get(draw)
        if self._accepted.pop(draw, None) is None and group is not None and not group.is_closed:
            self._stop(draw, group, outcome)
            self._consume(draw)
        self._fill(outcome)
        return self._decide(outcome)

    def pass_through(self, gates: Gates) -> Decision:
        """Launch what new gates let through."""
        self._gates = gates
        return self._decide(_Outcome())

    @property
    def progress(self) -> RoundProgress:
        """Progress of the round."""
        return RoundProgress(
            self._kind,
            num_launched=self._num_launched,
            num_finished=self._num_finished,
            num_held=self._num_held,
            num_returning=self._num_returning,
            num_expected=self._num_expected_groups * self._num_responses,
            num_accepted=len(self._accepted),
            num_groups=self._num_groups,
        )

    @property
    def num_missing(self) -> int:
        """Groups to admit so that there are as many candidates as planned (after a cut-off: as many as needed)."""
        wanted = self._num_groups if self._was_cut_off else self._num_candidates
        return 0 if self.has_batch else max(0, wanted - len(self._accepted) - self._num_live)

    @property
    def has_batch(self) -> bool:
        """Whether the batch is complete. It is not any more when an accepted group loses its rewards."""
        return len(self._accepted) == self._num_groups

    @property
    def accepted(self) -> tuple[AcceptedGroup, ...]:
        """Accepted groups, in order of acceptance."""
        return tuple(self._accepted.values())

    @property
    def zero_variance(self) -> tuple[Draw, ...]:
        """Groups that were consumed because all their rewards were equal."""
        return tuple(self._zero_variance)

    @property
    def leftovers(self) -> tuple[Leftover, ...]:
        """Groups admitted and not consumed, in order of admission."""
        return tuple(
            Leftover(draw, tuple(group.finished), (*group.running, *group.waiting))
            for draw, group in self._open.items()
        )

    @property
    def _num_expected_groups(self) -> int:
        """Return how many groups will replace others of zero variance.

        They are those that the batch still lacks, times the odds of zero variance in this round by Laplace's rule of
        succession, (dropped + 1) / (kept + 1).
        """
        if self._acceptance is Acceptance.SERVED or self.has_batch:
            return 0
        num_kept = len(self._accepted) + len(self._qualified)
        num_lacking = max(0, self._num_groups - num_kept)
        return -(-num_lacking * (len(self._zero_variance) + 1) // (num_kept + 1))

    def _is_served(self, draw: Draw) -> bool:
        group = self._open.get(draw)
        return group is not None and group.is_served and not group.is_closed

    def _serve(self, draw: Draw, outcome: _Outcome) -> None:
        """Stop the rest of a group that has its R0 responses, and move the frontier on."""
        group = self._open[draw]
        group.is_served = True
        self._stop(draw, group, outcome)
        if self._acceptance is Acceptance.SERVED:
            self._qualify(draw, outcome)
        else:
            outcome.score.append(self._group(draw))

    def _stop(self, draw: Draw, group: Group, outcome: _Outcome) -> None:
        """Stop what a group still runs or waits to launch."""
        outcome.abort += [ResponseId(draw, index) for index in group.running]
        self._num_running -= group.num_on_engines
        self._num_held -= len(group.waiting)
        self._num_returning -= len(group.returning)
        group.running, group.waiting, group.away, group.returning = {}, deque(), set(), deque()
        self._queue.leave(draw, group)

    def _qualify(self, draw: Draw, outcome: _Outcome) -> None:
        if draw in self._due:
            self._accept(draw, outcome)
        else:
            self._qualified.append(draw)
        self._fill(outcome)

    def _fill(self, outcome: _Outcome) -> None:
        """Give places in the batch to those that wait for one; draws that are due keep theirs."""
        while self._qualified and len(self._accepted) + len(self._due) < self._num_groups:
            self._accept(self._qualified.popleft(), outcome)

    def _accept(self, draw: Draw, outcome: _Outcome) -> None:
        group = self._group(draw)
        self._consume(draw)
        self._accepted[draw] = group
        outcome.accepted.append(group)
        if self._acceptance is Acceptance.SERVED:
            outcome.score.append(group)

    def _group(self, draw: Draw) -> AcceptedGroup:
        return AcceptedGroup(draw, tuple(self._open[draw].finished[: self._num_responses]))

    def _consume(self, draw: Draw) -> None:
        del self._open[draw]
        self._due.discard(draw)
        self._num_live -= 1

    def _decide(self, outcome: _Outcome) -> Decision:
        if self.has_batch:
            self._cut_off(outcome)
        launched, resumed = self._let_through()
        return Decision(
            launch=tuple(launched),
            resume=tuple(resumed),
            abort=tuple(outcome.abort),
            score=tuple(outcome.score),
            accepted=tuple(outcome.accepted),
            has_batch=self.has_batch,
        )

    def _let_through(self) -> tuple[list[ResponseId], list[ResponseId]]:
        """Return what the gates let through, to launch and to resume, group by group in order of admission."""
        launched: list[ResponseId] = []
        resumed: list[ResponseId] = []
        width, max_running = self._gates.frontier_width, self._gates.max_running
        while max_running is None or self._num_running < max_running:
            if (found := self._queue.next(width)) is None:
                break
            draw, group = found
            self._num_running += 1
            if group.returning:
                index = group.returning.popleft()
                group.away.discard(index)
                self._num_returning -= 1
                resumed.append(ResponseId(draw, index))
            else:
                index = group.waiting.popleft()
                group.running[index] = None
                self._num_held -= 1
                self._num_launched += 1
                launched.append(ResponseId(draw, index))
            self._queue.enter(draw, group)
        return launched, resumed

    def _cut_off(self, outcome: _Outcome) -> None:
        """End what is still open; what was running may just have finished, and is then noted."""
        self._was_cut_off = True
        for draw, group in self._open.items() if self._num_live else ():
            if not group.is_closed:
                group.is_closed = True
                outcome.abort += [ResponseId(draw, index) for index in group.running]
        self._num_live = self._num_running = self._num_held = self._num_returning = 0
        self._qualified.clear()
        self._queue = AdmissionQueue()
