"""Writes a round as a table: draws are letters in the order of the data, `A1` is response 1 of draw A.

A row is an event and what the policy did about it; what a row does not name did not happen.

    start        the round begins
    A1 B0        these responses finish, in the same engine step
    A=           the rewards of A are there and all equal
    A~           the rewards of A are there and differ
    A!           the rewards of A failed
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from longshore.api.round_status import RoundKind
from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.round import AcceptedGroup, Decision, ResponseFinished, ResponseId
from longshore.policy.round_policy import RoundEnd, RoundPolicy

DRAWS = {letter: Draw(0, row) for row, letter in enumerate(ascii_uppercase)}
LETTERS = {draw: letter for letter, draw in DRAWS.items()}


class _InOrder(DrawCursor):
    def _shuffled(self, epoch: int) -> list[int]:
        return list(range(len(DRAWS)))


def cursor() -> DrawCursor:
    """Data whose draws are A, B, C and so on; ties go by the alphabet."""
    return _InOrder(len(DRAWS), seed=0)


@dataclass(frozen=True)
class Did:
    """A decision. A group is its letter with its responses in the order in which they finished: `A20`."""

    launch: str = ""
    abort: str = ""
    score: str = ""
    accepted: str = ""
    has_batch: bool = False


@dataclass(frozen=True)
class Ended:
    """The end of a round."""

    accepted: str
    deferred: str = ""
    kept: str = ""
    zero_variance: str = ""
    kind: RoundKind = RoundKind.FULL


class Table:
    """Drives a policy with written events."""

    def __init__(self, policy: RoundPolicy, *, engines: Sequence[int] = (0,)) -> None:
        self._policy = policy
        self._engines = engines
        self._step = 0

    def row(self, event: str, *, num_tokens: int = 1) -> Did:
        """One event; `num_tokens`: length of the responses that finish."""
        self._step += 1
        if event in ("start", "drain"):
            return did(self._policy.start_round(draining=event == "drain", engines=self._engines).decision)
        if event[1] in "=~":
            return did(self._policy.group_rewarded(DRAWS[event[0]], zero_variance=event[1] == "="))
        if event[1] == "!":
            return did(self._policy.group_rejected(DRAWS[event[0]]))
        finished = [ResponseFinished(response(name), self._step, num_tokens) for name in event.split()]
        return did(self._policy.responses_finished(finished))

    def rows(self, *events: str) -> list[Did]:
        """Several events."""
        return [self.row(event) for event in events]

    def end(self) -> Ended:
        """Close the round."""
        return ended(self._policy.end_round())


def response(name: str) -> ResponseId:
    """`A1`."""
    return ResponseId(DRAWS[name[0]], int(name[1:]))


def did(decision: Decision) -> Did:
    """A decision as it is written."""
    return Did(
        launch=responses(decision.launch),
        abort=responses(decision.abort),
        score=_groups(decision.score),
        accepted=_groups(decision.accepted),
        has_batch=decision.has_batch,
    )


def ended(end: RoundEnd) -> Ended:
    """The end of a round as it is written."""
    return Ended(
        accepted=_groups(end.accepted),
        deferred=draws(end.deferred),
        kept=responses(end.kept),
        zero_variance=draws(end.zero_variance),
        kind=end.kind,
    )


def draws(some: Iterable[Draw]) -> str:
    """`A B`."""
    return " ".join(LETTERS[draw] for draw in some)


def responses(some: Iterable[ResponseId]) -> str:
    return " ".join(f"{LETTERS[one.draw]}{one.index}" for one in some)


def _groups(some: Iterable[AcceptedGroup]) -> str:
    return " ".join(LETTERS[group.draw] + "".join(map(str, group.responses)) for group in some)
