"""Response lengths of recorded rounds, those of episodes with turns and time, to simulate with. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from longshore.record.model import RecordOutcome, ResponseRow, RoundRecord
from longshore.rounds.messages import EpisodeLength, ResponseLength


@dataclass(frozen=True)
class RecordedLengths:
    """Lengths of finished responses by their draw, and the number of other responses."""

    groups: tuple[tuple[ResponseLength, ...], ...]
    num_cut: int
    """Responses that were aborted for good: how long they would have become is not known."""
    num_started: int
    num_rounds: int

    @property
    def cut_share(self) -> float:
        """Share of started responses that did not finish; a high share means a bias towards short lengths."""
        return self.num_cut / self.num_started if self.num_started else 0.0


def recorded_lengths(records: Sequence[RoundRecord]) -> RecordedLengths:
    """Return the lengths of these rounds, in order. A postponed draw counts with the last round that started it."""
    finished: dict[str, list[tuple[int, ResponseRow]]] = {}
    last_step: dict[str, int] = {}
    num_started = num_cut = 0
    for record in records:
        for row in record.responses:
            draw = _draw(row)
            last_step[draw] = record.step
            num_started += 1
            # What was deferred or kept is sampled to its end by a later round.
            num_cut += row.finish == "abort" and row.outcome is RecordOutcome.UNUSED
            if row.finish != "abort":
                finished.setdefault(draw, []).append((record.step, row))
    groups = (
        tuple(_length(row) for step, row in rows if step == last_step[draw] or row.outcome is RecordOutcome.KEPT)
        for draw, rows in finished.items()
    )
    return RecordedLengths(tuple(filter(None, groups)), num_cut, num_started, len({record.step for record in records}))


def _length(row: ResponseRow) -> ResponseLength:
    return EpisodeLength(row.tokens, row.turns, row.environment_s, row.observed_tokens) if row.turns else row.tokens


def _draw(row: ResponseRow) -> str:
    return row.response.rpartition("-")[0]
