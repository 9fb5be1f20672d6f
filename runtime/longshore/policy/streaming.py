"""Bookkeeping of streamed gradients (RollPacker, section 4.4): which replica's sums hold which samples.

Gradients are accumulated as unreduced sums while the round still runs and become one update at its end, so nothing may
be counted twice or left out, whichever replica did the work and whichever was lost. Nothing here outlives a step.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from longshore.policy.balancing import balance
from longshore.policy.round import ResponseId

MAX_PENDING_PARTS: Final = 2
"""Parts that a replica has in hand while the round runs: one that it computes, one behind it. What is not handed over
can still go to any replica when the round ends."""


@dataclass(frozen=True)
class StreamSample:
    """An accepted response, as the trainer sees it."""

    response: ResponseId
    num_tokens: int
    """Prompt and response: what its forward and backward pass costs."""


@dataclass(frozen=True)
class SamplePart:
    """Samples for one pass of one replica."""

    replica: int
    responses: tuple[ResponseId, ...]


class StreamLedger:
    """Samples of one step: accepted group by group, then handed to exactly one replica each."""

    def __init__(self) -> None:
        self._samples: dict[ResponseId, StreamSample] = {}
        self._replica_of: dict[ResponseId, int] = {}
        self._waiting: deque[tuple[ResponseId, ...]] = deque()
        """Groups that no replica has, in order of acceptance."""
        self._pending: dict[int, deque[int]] = {}
        """Tokens of the parts that each replica has still to compute."""

    def accept(self, group: Sequence[StreamSample]) -> None:
        """Accept a group for the step, whatever its advantages are."""
        for sample in group:
            assert sample.response not in self._samples, f"response {sample.response} accepted twice"
            self._samples[sample.response] = sample
        self._waiting.append(tuple(sample.response for sample in group))

    def next_parts(self, awake: Iterable[int]) -> tuple[SamplePart, ...]:
        """Hand groups over while replicas that are awake want some: each to the one with the fewest tokens in hand."""
        replicas = sorted(awake)
        parts = []
        while self._waiting and replicas:
            replica = min(replicas, key=lambda one: (len(self._pending_of(one)), self.pending_tokens(one), one))
            if len(self._pending_of(replica)) >= MAX_PENDING_PARTS:
                break
            parts.append(self._hand_over(replica, self._waiting.popleft()))
        return tuple(parts)

    def last_parts(self, replicas: Iterable[int]) -> tuple[SamplePart, ...]:
        """Hand over all that is left after the round, sample by sample, so that all replicas end together."""
        left = [self._samples[response] for group in self._waiting for response in group]
        self._waiting.clear()
        shares = split(left, {replica: self.pending_tokens(replica) for replica in replicas})
        return tuple(
            self._hand_over(replica, tuple(sample.response for sample in share))
            for replica, share in shares.items()
            if share
        )

    def computed(self, replica: int) -> None:
        """Note that a replica has done the oldest part that it had in hand."""
        self._pending_of(replica).popleft()

    def lost(self) -> None:
        """Note that the replicas and their sums are gone: everything waits again, in order of acceptance."""
        self._replica_of, self._pending = {}, {}
        self._waiting = deque((response,) for response in self._samples)

    @property
    def replica_of(self) -> Mapping[ResponseId, int]:
        """Replica whose sums hold, or will hold, each sample."""
        return self._replica_of

    @property
    def computed_tokens(self) -> int:
        """Tokens that replicas have computed; the part that each of them is at counts by half."""
        given = sum(self._samples[response].num_tokens for response in self._replica_of)
        under_way = sum(parts[0] for parts in self._pending.values() if parts)
        return given - sum(map(self.pending_tokens, self._pending)) + under_way // 2

    def pending_tokens(self, replica: int) -> int:
        """Return what a replica has still to compute."""
        return sum(self._pending_of(replica))

    def _hand_over(self, replica: int, responses: tuple[ResponseId, ...]) -> SamplePart:
        for response in responses:
            assert response not in self._replica_of, f"response {response} is with replica {self._replica_of[response]}"
            self._replica_of[response] = replica
        self._pending_of(replica).append(sum(self._samples[response].num_tokens for response in responses))
        return SamplePart(replica, responses)

    def _pending_of(self, replica: int) -> deque[int]:
        return self._pending.setdefault(replica, deque())


def split(samples: Sequence[StreamSample], tokens: Mapping[int, int]) -> Mapping[int, tuple[StreamSample, ...]]:
    """Give every sample to one of the replicas in `tokens` (replica -> tokens that it has still to compute).

    Ties: the lower response, the lower replica.
    """
    in_order = sorted(samples, key=lambda sample: sample.response)
    shares = balance(in_order, lambda sample: sample.num_tokens, tokens).pieces
    return {replica: tuple(share) for replica, share in shares.items()}
