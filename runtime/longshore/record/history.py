"""History of responses and engines, from the messages between a round and its driver. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.record.model import StayEnd
from longshore.rounds import messages

Message = messages.RoundEvent | messages.RoundCommand
TimedMessage = tuple[float, Message]
"""A message, and its time by the driver's clock."""


@dataclass(frozen=True)
class EngineStay:
    """A response on an engine."""

    response: ResponseId
    engine: int
    start_s: float
    end_s: float
    num_tokens: int
    end: StayEnd
    environment_s: float = 0.0
    """Seconds from the end of the stay until the environment of an episode had answered its turn."""


@dataclass(frozen=True)
class Absence:
    """Time without a lost engine, until it joined again (None: it did not join in this round)."""

    engine: int
    start_s: float
    end_s: float | None


@dataclass
class RoundHistory:
    """What happened in a round."""

    stays: list[EngineStay] = field(default_factory=list)
    """In the order in which they ended."""
    absences: list[Absence] = field(default_factory=list)
    retired_s: dict[int, float] = field(default_factory=dict)
    """When engines began to leave the rollout for the rest of the round."""
    drained_s: float | None = None
    """When nothing ran on them any longer."""
    scored_s: dict[Draw, float] = field(default_factory=dict)
    trainable_s: dict[Draw, float] = field(default_factory=dict)
    """When the trainer could have a group of the batch."""
    episodes: dict[ResponseId, messages.EpisodeLength] = field(default_factory=dict)
    """Lengths of the episodes that are over."""
    environment_s: dict[ResponseId, float] = field(default_factory=dict)
    """Seconds that episodes waited for their environments, those that were cut off included."""


def history(messages_: Iterable[TimedMessage]) -> RoundHistory:
    """Build the history of a round that is over, so that every request has ended."""
    reader = _HistoryReader()
    for now_s, message in messages_:
        reader.read(now_s, message)
    return reader.found


def busy_spans(stays: Sequence[EngineStay]) -> list[tuple[float, float]]:
    """Return the spans during which at least one of these responses was on its engine, in order."""
    spans: list[tuple[float, float]] = []
    for stay in sorted(stays, key=lambda stay: stay.start_s):
        if spans and stay.start_s <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], stay.end_s))
        else:
            spans.append((stay.start_s, stay.end_s))
    return spans


_NOWHERE: Final = -1


class _HistoryReader:
    """Reader of the messages of one round."""

    def __init__(self) -> None:
        self.found = RoundHistory()
        self._open: dict[ResponseId, tuple[int, float]] = {}
        """Engine and begin of the stay of every response that is on an engine."""
        self._stopped: dict[ResponseId, int] = {}
        """Place of the last stay of responses that were stopped: one that is added again has moved."""
        self._num_tokens: dict[ResponseId, int] = {}
        self._cancelled: set[ResponseId] = set()
        """Episodes that nobody needs any more: a turn that ends nevertheless is none."""
        self._finished: dict[ResponseId, int] = {}
        """Place of the last stay that ended by itself."""
        self._acting: dict[ResponseId, float] = {}
        """Since when episodes wait for their environments."""

    def read(self, now_s: float, message: Message) -> None:
        match message:
            case messages.AddRequests(engine, responses):
                self._added(now_s, engine, responses)
            case messages.RequestsEnded(engine, requests):
                for request in requests:
                    self._ended(now_s, engine, request)
            case messages.StartEpisodes(responses):
                self._acting.update(dict.fromkeys(responses, now_s))
            case messages.GiveTurns(responses):
                self._acting.update(dict.fromkeys(responses, now_s))
                for response in responses:
                    self._end_stay(self._finished[response], StayEnd.TURNED)
            case messages.EpisodeAnswered(response) | messages.EpisodeFailed(response):
                self._answered(now_s, response)
            case messages.CancelEpisodes(responses):
                for response in responses:
                    self._answered(now_s, response)
                self._cancelled.update(responses)
            case messages.EpisodeEnded(response, length) if response in self._finished:
                self._answered(now_s, response)
                self._end_stay(self._finished[response], StayEnd.FINISHED)
                self.found.episodes[response] = length
            case messages.EngineLost(engine):
                self._lost(now_s, engine)
            case messages.EngineJoined(engine):
                self._joined(now_s, engine)
            case messages.EnginesRetired(engines):
                self.found.retired_s.update(dict.fromkeys(engines, now_s))
            case messages.AnnounceEmptied():
                self.found.drained_s = now_s
            case messages.GroupRewarded(draw):
                self.found.scored_s[draw] = now_s
            case messages.TrainOnGroup(group):
                self.found.trainable_s[group.draw] = now_s

    def _added(self, now_s: float, engine: int, responses: Sequence[ResponseId]) -> None:
        for response in responses:
            self._open[response] = (engine, now_s)
            if (place := self._stopped.pop(response, None)) is not None:
                self._end_stay(place, StayEnd.MOVED)

    def _ended(self, now_s: float, engine: int, request: messages.EndedRequest) -> None:
        where, start_s = self._open.get(request.response, (_NOWHERE, now_s))
        if where != engine:
            return  # A report of a lost engine that arrives late.
        del self._open[request.response]
        self._num_tokens[request.response] = request.num_tokens
        is_finished = request.finished and request.response not in self._cancelled
        (self._finished if is_finished else self._stopped)[request.response] = len(self.found.stays)
        end = StayEnd.FINISHED if is_finished else StayEnd.ABORTED
        self.found.stays.append(EngineStay(request.response, engine, start_s, now_s, request.num_tokens, end))

    def _answered(self, now_s: float, response: ResponseId) -> None:
        """Count the time that an episode has waited for its environment, if it has."""
        if (since_s := self._acting.pop(response, None)) is None:
            return
        waited_s, of_all = now_s - since_s, self.found.environment_s
        of_all[response] = of_all.get(response, 0.0) + waited_s
        if (place := self._finished.get(response)) is not None:
            self.found.stays[place] = replace(self.found.stays[place], environment_s=waited_s)

    def _end_stay(self, place: int, end: StayEnd) -> None:
        self.found.stays[place] = replace(self.found.stays[place], end=end)

    def _lost(self, now_s: float, engine: int) -> None:
        for response in [one for one, (where, _) in self._open.items() if where == engine]:
            _, start_s = self._open.pop(response)
            num_tokens = self._num_tokens.get(response, 0)
            self.found.stays.append(EngineStay(response, engine, start_s, now_s, num_tokens, StayEnd.LOST))
        self.found.absences.append(Absence(engine, now_s, None))

    def _joined(self, now_s: float, engine: int) -> None:
        absences = self.found.absences
        for place, absence in enumerate(absences):
            if absence.engine == engine and absence.end_s is None:
                absences[place] = replace(absence, end_s=now_s)
