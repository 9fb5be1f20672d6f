"""One round as a state machine: groups are admitted, responses finish, the first enough groups are accepted.

Every round policy is this machine with its own admission and its own treatment of what is left over.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from longshore.policy.draws import Draw


@dataclass(frozen=True, order=True)
class ResponseId:
    """One sampled output of a draw."""

    draw: Draw
    index: int

    def __str__(self) -> str:
        return f"{self.draw}-{self.index}"


@dataclass(frozen=True)
class ResponseFinished:
    """Event: a response ended. Among events that arrive together, (engine step, response) decides the order."""

    response: ResponseId
    engine_step: int


@dataclass(frozen=True)
class Admission:
    """A draw to start: which responses to sample, and which of its responses already ended earlier."""

    draw: Draw
    launch: tuple[int, ...]
    finished: tuple[int, ...] = ()


@dataclass(frozen=True)
class AcceptedGroup:
    """A group that the step trains on: exactly R0 responses, in the order in which they finished."""

    draw: Draw
    responses: tuple[int, ...]


@dataclass(frozen=True)
class Decision:
    """What the shell has to do now."""

    launch: tuple[ResponseId, ...] = ()
    abort: tuple[ResponseId, ...] = ()
    accepted: tuple[AcceptedGroup, ...] = ()
    """Groups newly accepted for training."""
    ended: bool = False
    """The batch is complete: nothing of this round needs to run any longer."""


@dataclass(frozen=True)
class Leftover:
    """A group that a round did not accept."""

    draw: Draw
    finished: tuple[int, ...]
    running: tuple[int, ...]


@dataclass
class _Group:
    running: list[int]
    finished: list[int]
    closed: bool = False
    """Cut off by the end of the round: what still finishes is noted for later rounds, and accepted in none."""


@dataclass
class Round:
    """Accepts the first `num_groups` groups that have `num_responses` finished responses each."""

    num_groups: int
    num_responses: int
    _open: dict[Draw, _Group] = field(default_factory=dict)
    _accepted: dict[Draw, AcceptedGroup] = field(default_factory=dict)

    def admit(self, admissions: Iterable[Admission]) -> Decision:
        """Start groups; one that already has enough finished responses is served at once."""
        launch: list[ResponseId] = []
        served: list[Draw] = []
        for admission in admissions:
            draw = admission.draw
            assert draw not in self._open and draw not in self._accepted, f"draw {draw} admitted twice"
            assert len(admission.launch) + len(admission.finished) >= self.num_responses
            self._open[draw] = _Group(list(admission.launch), list(admission.finished))
            if len(admission.finished) >= self.num_responses:
                served.append(draw)
            launch += [ResponseId(draw, index) for index in admission.launch]
        return self._accept(served, launch)

    def finish(self, events: Sequence[ResponseFinished]) -> Decision:
        """Take finished responses; those of accepted groups came too late and are ignored."""
        served: list[Draw] = []
        for event in sorted(events, key=lambda event: (event.engine_step, event.response)):
            group = self._open.get(event.response.draw)
            if group is None or event.response.index not in group.running:
                continue
            group.running.remove(event.response.index)
            group.finished.append(event.response.index)
            if len(group.finished) == self.num_responses and not group.closed:
                served.append(event.response.draw)
        return self._accept(served, [])

    def reject(self, draw: Draw) -> None:
        """Take an accepted group back; the caller admits a replacement."""
        del self._accepted[draw]

    @property
    def ended(self) -> bool:
        """Whether the batch is complete."""
        return len(self._accepted) == self.num_groups

    @property
    def accepted(self) -> tuple[AcceptedGroup, ...]:
        """Accepted groups, in order of acceptance."""
        return tuple(self._accepted.values())

    @property
    def leftovers(self) -> tuple[Leftover, ...]:
        """Groups admitted and not accepted, in order of admission."""
        return tuple(Leftover(draw, tuple(group.finished), tuple(group.running)) for draw, group in self._open.items())

    def _accept(self, served: Iterable[Draw], launch: Sequence[ResponseId]) -> Decision:
        accepted: list[AcceptedGroup] = []
        abort: list[ResponseId] = []
        for draw in served:
            if self.ended:
                break
            group = self._open.pop(draw)
            self._accepted[draw] = AcceptedGroup(draw, tuple(group.finished[: self.num_responses]))
            accepted.append(self._accepted[draw])
            abort += [ResponseId(draw, index) for index in group.running]
        if self.ended:
            abort += self._close()
        never_started = set(launch) & set(abort)
        return Decision(
            launch=tuple(response for response in launch if response not in never_started),
            abort=tuple(response for response in abort if response not in never_started),
            accepted=tuple(accepted),
            ended=self.ended,
        )

    def _close(self) -> list[ResponseId]:
        """Cut off every open group; returns what it was still running."""
        cut_off: list[ResponseId] = []
        for draw, group in self._open.items():
            if not group.closed:
                group.closed = True
                cut_off += [ResponseId(draw, index) for index in group.running]
        return cut_off
