"""Measure how far a trainer is within a call that may take minutes, for anyone who watches."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class WorkMeter:
    """Counts samples that are computed, once for every call that they are given to.

    One thread computes. Any other may read `num_computed` and `loaded_share` meanwhile.
    """

    def __init__(self) -> None:
        self.num_computed = 0.0
        """Samples of all calls that have ended, and the computed part of those of the running call."""
        self.loaded_share = 0.0
        """Loaded part of the checkpoint that is being loaded, or was loaded last; from 0 to 1."""
        self._num_given = 0
        self._per_pass = 0.0
        """Samples that one pass over one sample counts as."""

    @contextmanager
    def call(self, num_samples: int) -> Iterator[None]:
        """Count `num_samples` as computed when the block exits, whether or not it raises."""
        before, self._num_given = self.num_computed, num_samples
        try:
            yield
        finally:
            self._num_given, self._per_pass = 0, 0.0
            self.num_computed = before + num_samples

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Measure the loading of a checkpoint, which is complete when the block is left without an error."""
        self.loaded_share = 0.0
        yield
        self.loaded_share = 1.0

    def loaded(self, num_values: int, total_values: int) -> None:
        """Count values that have been loaded, of all that this rank holds of the checkpoint."""
        self.loaded_share += num_values / total_values

    def expect(self, num_sample_passes: int) -> None:
        """Note that the running call makes so many passes over a sample, of all samples together."""
        self._per_pass = self._num_given / num_sample_passes if num_sample_passes else 0.0

    def each(self, micro_batches: Sequence[T], num_samples: int) -> Iterator[T]:
        """Yield a pass over so many samples: a micro-batch is computed when the next one is asked for.

        Micro-batches have about equally many tokens, so they count alike. Outside of a call nothing counts.
        """
        for micro_batch in micro_batches:
            yield micro_batch
            self.num_computed += self._per_pass * num_samples / len(micro_batches)
