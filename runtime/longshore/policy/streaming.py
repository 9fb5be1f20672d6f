"""Bookkeeping of streamed gradients (RollPacker, section 4.4): which replica's sums hold which samples.

Gradients are accumulated as unreduced sums while the round still runs and become one update at its end, so nothing may
be counted twice or left out, whichever replica did the work and whichever was lost. A round that begins again
begins with an empty ledger; nothing here outlives it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from longshore.policy.round import ResponseId


@dataclass(frozen=True)
class StreamSample:
    """An accepted response, as the trainer sees it."""

    response: ResponseId
    num_loss_tokens: int
    """Response tokens in the loss: its part of the denominator."""
    num_tokens: int
    """Prompt and response: what its forward and backward pass costs."""
    has_gradient: bool = True
    """False where the advantage is 0, so that nothing needs computing; the denominator counts the sample still."""


@dataclass(frozen=True)
class SampleSums:
    """Samples, added up."""

    num_samples: int = 0
    num_loss_tokens: int = 0
    num_tokens: int = 0

    def plus(self, sample: StreamSample) -> "SampleSums":
        """With one sample more."""
        return SampleSums(
            self.num_samples + 1, self.num_loss_tokens + sample.num_loss_tokens, self.num_tokens + sample.num_tokens
        )


class StreamLedger:
    """Samples of one step: accepted, then handed to exactly one replica each."""

    def __init__(self) -> None:
        self._samples: dict[ResponseId, StreamSample] = {}
        self._replica_of: dict[ResponseId, int] = {}

    def accept(self, samples: Iterable[StreamSample]) -> None:
        """These belong to the step, zero-variance ones included."""
        for sample in samples:
            assert sample.response not in self._samples, f"response {sample.response} accepted twice"
            self._samples[sample.response] = sample

    def hand_over(self, replica: int, responses: Iterable[ResponseId]) -> None:
        """A replica gets these to compute; from here on its sums are taken to hold them."""
        for response in responses:
            assert response in self._samples, f"response {response} was never accepted"
            assert response not in self._replica_of, f"response {response} is with replica {self._replica_of[response]}"
            self._replica_of[response] = replica

    def replica_lost(self, replica: int) -> tuple[StreamSample, ...]:
        """A replica and its sums are gone; its samples, in order of acceptance, remain to be computed again."""
        lost = tuple(sample for sample in self._samples.values() if self._replica_of.get(sample.response) == replica)
        for sample in lost:
            del self._replica_of[sample.response]
        return lost

    def replica_of(self, response: ResponseId) -> int | None:
        """Who has it."""
        return self._replica_of.get(response)

    @property
    def remaining(self) -> tuple[StreamSample, ...]:
        """Samples whose gradient no replica has, in order of acceptance."""
        return tuple(
            sample
            for sample in self._samples.values()
            if sample.has_gradient and sample.response not in self._replica_of
        )

    @property
    def total(self) -> SampleSums:
        """Of all accepted samples: what the denominator of the step is made of."""
        return _sums(self._samples.values())

    def done_by(self, replica: int) -> SampleSums:
        """Of the samples that a replica has."""
        return _sums(self._samples[response] for response, owner in self._replica_of.items() if owner == replica)

    def split_remaining(self, replicas: Sequence[int]) -> Mapping[int, tuple[StreamSample, ...]]:
        """Spread what remains over these replicas, given what each has done; hands nothing over yet."""
        return split(self.remaining, {replica: self.done_by(replica).num_tokens for replica in replicas})


def split(remaining: Sequence[StreamSample], done_tokens: Mapping[int, int]) -> Mapping[int, tuple[StreamSample, ...]]:
    """Give every sample to one of the replicas in `done_tokens` (replica -> tokens it has done in this step).

    Longest first, each to the replica with the fewest tokens so far (Graham's LPT rule): a replica that was given
    anything is ahead of no other by more than the smallest sample it got. Ties: the lower response, the lower replica.
    """
    assert done_tokens, "there is no replica"
    load = dict(sorted(done_tokens.items()))
    shares: dict[int, list[StreamSample]] = {replica: [] for replica in load}
    for sample in sorted(remaining, key=lambda sample: (-sample.num_tokens, sample.response)):
        replica = min(load, key=lambda candidate: (load[candidate], candidate))
        shares[replica].append(sample)
        load[replica] += sample.num_tokens
    return {replica: tuple(share) for replica, share in shares.items()}


def require_streamable(name: str, *, needs_whole_batch: bool) -> None:
    """Refuse an algorithm whose loss of one sample depends on the other groups: ValueError."""
    if needs_whole_batch:
        raise ValueError(
            f"algorithm.name: {name} needs the whole batch before its first gradient, so gradients cannot be streamed "
            "while the round runs; choose another algorithm or hand over after the round"
        )


def _sums(samples: Iterable[StreamSample]) -> SampleSums:
    sums = SampleSums()
    for sample in samples:
        sums = sums.plus(sample)
    return sums
