"""Drives a round policy as an engine would, and holds every promise against what it did."""

import random
from collections import Counter
from dataclasses import dataclass, field

from longshore.policy.draws import Draw
from longshore.policy.round import Decision, ResponseFinished, ResponseId
from longshore.policy.round_policy import BatchShape, RoundEnd, RoundPolicy


@dataclass
class Audit:
    """What became of every draw over a run."""

    shape: BatchShape
    admitted: set[Draw] = field(default_factory=set)
    """Draws that a round started, or put off before any of their responses was launched."""
    trained: Counter[Draw] = field(default_factory=Counter)
    rejected: Counter[Draw] = field(default_factory=Counter)
    ends: list[RoundEnd] = field(default_factory=list)

    def assert_invariants(self, policy: RoundPolicy) -> None:
        """Every draw is consumed at most once, and what is not consumed waits; every batch is exact."""
        assert all(count == 1 for count in self.trained.values()), "a draw was trained twice"
        assert not self.trained.keys() & self.rejected.keys(), "a rejected draw was trained"
        waiting = self.admitted - self.trained.keys() - self.rejected.keys()
        assert len(waiting) == policy.num_deferred, "a draw was lost"
        for end in self.ends:
            assert all(len(set(group.responses)) == self.shape.num_responses for group in end.accepted)


class FakeRollout:
    """Finishes responses in the order of their lengths, a few at a time, until the round ends."""

    def __init__(self, policy: RoundPolicy, shape: BatchShape, rng: random.Random, rejection: float = 0.0) -> None:
        self._policy = policy
        self._rng = rng
        self._rejection = rejection
        self._running: dict[ResponseId, int] = {}
        self.audit = Audit(shape)

    def round(self, *, draining: bool = False) -> RoundEnd:
        """One round to its end."""
        self._running = {}
        self._execute(self._policy.start_round(draining=draining).decision)
        ended = not self._running
        while not ended:
            shortest = sorted(self._running.items(), key=lambda item: (item[1], item[0]))
            finished = shortest[: self._rng.randint(1, 3)]
            for response, _ in finished:
                del self._running[response]
            events = [ResponseFinished(response, step) for response, step in finished]
            self._rng.shuffle(events)
            ended = self._execute(self._policy.responses_finished(events))
        end = self._policy.end_round()
        self.audit.ends.append(end)
        self.audit.admitted.update(end.deferred)
        self.audit.trained.update(group.draw for group in end.accepted)
        return end

    def _execute(self, decision: Decision) -> bool:
        for response in decision.launch:
            assert response not in self._running, "a response was launched twice"
            self._running[response] = self._rng.randint(1, 60)
            self.audit.admitted.add(response.draw)
        for response in decision.abort:
            del self._running[response]
        ended = decision.ended
        for group in decision.accepted:
            if self._rng.random() < self._rejection:
                self.audit.rejected[group.draw] += 1
                ended = self._execute(self._policy.group_rejected(group.draw))
        return ended
