"""Fuse Hugging Face tensors into Megatron parameters and cut these into tensor-parallel shards. All exact."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

Piece = tuple[Tensor, int | None]
"""A rank's equal part of a tensor, and the dimension that it is cut along; None: all of it."""


class ShardLayout(Protocol):
    """Layout of one parameter: `whole(shards(tensors, size))` is `tensors`, bit by bit."""

    def shards(self, tensors: Sequence[Tensor], size: int) -> list[Tensor]:
        """Return the parameter on each of `size` tensor-parallel ranks."""

    def whole(self, shards: Sequence[Tensor]) -> list[Tensor]:
        """Return the Hugging Face tensors, given the parameters of all ranks."""

    def pieces(self, shard: Tensor, size: int) -> list[Piece] | None:
        """Return one rank's parts of the Hugging Face tensors; None if ranks do not have equal parts."""


@dataclass(frozen=True)
class Replicated:
    """Layout of a parameter that is the same on every rank."""

    def shards(self, tensors: Sequence[Tensor], size: int) -> list[Tensor]:
        """Return the tensor once per rank."""
        (tensor,) = tensors
        return [tensor] * size

    def whole(self, shards: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensor of the first rank."""
        return [shards[0]]

    def pieces(self, shard: Tensor, size: int) -> list[Piece] | None:
        """Return the whole tensor."""
        return [(shard, None)]


@dataclass(frozen=True)
class Cut:
    """Layout of a parameter cut along one dimension: 0 splits outputs (column-parallel), 1 inputs (row-parallel)."""

    dim: int

    def shards(self, tensors: Sequence[Tensor], size: int) -> list[Tensor]:
        """Return equal pieces."""
        (tensor,) = tensors
        return _cut(tensor, size, self.dim)

    def whole(self, shards: Sequence[Tensor]) -> list[Tensor]:
        """Join the pieces."""
        return [torch.cat(list(shards), self.dim)]

    def pieces(self, shard: Tensor, size: int) -> list[Piece] | None:
        """Return the shard."""
        return [(shard, self.dim)]


@dataclass(frozen=True)
class Vocabulary:
    """Layout of a parameter whose rows are tokens; rows of zeros make their number divisible."""

    vocab_size: int

    def shards(self, tensors: Sequence[Tensor], size: int) -> list[Tensor]:
        """Pad the rows, and cut them into equal pieces."""
        (tensor,) = tensors
        missing = padded_vocab_size(self.vocab_size, size) - self.vocab_size
        padding = tensor.new_zeros(missing, tensor.shape[1])
        return _cut(torch.cat([tensor, padding]) if missing else tensor, size, 0)

    def whole(self, shards: Sequence[Tensor]) -> list[Tensor]:
        """Join the pieces, without the padding."""
        return [torch.cat(list(shards))[: self.vocab_size]]

    def pieces(self, shard: Tensor, size: int) -> list[Piece] | None:
        """Return None: the last ranks may have fewer tokens."""
        return None


@dataclass(frozen=True)
class QueryKeyValue:
    """Interleaved layout of queries, keys and values: per query group its query heads, key head and value head."""

    num_query_groups: int
    head_dim: int

    def shards(self, tensors: Sequence[Tensor], size: int) -> list[Tensor]:
        """Interleave, and cut between query groups."""
        groups = [tensor.reshape(self.num_query_groups, -1, *tensor.shape[1:]) for tensor in tensors]
        return _cut(torch.cat(groups, 1).flatten(0, 1), size, 0)

    def whole(self, shards: Sequence[Tensor]) -> list[Tensor]:
        """Return queries, keys and values."""
        fused = torch.cat(list(shards))
        groups = fused.reshape(self.num_query_groups, -1, *fused.shape[1:])
        widths = [groups.shape[1] - 2 * self.head_dim, self.head_dim, self.head_dim]
        return [part.flatten(0, 1) for part in torch.split(groups, widths, 1)]

    def pieces(self, shard: Tensor, size: int) -> list[Piece] | None:
        """Return queries, keys and values of this rank's groups."""
        return [(piece, 0) for piece in replace(self, num_query_groups=self.num_query_groups // size).whole([shard])]


@dataclass(frozen=True)
class GateUp:
    """Layout of each rank's piece of the gate above its piece of the up projection."""

    def shards(self, tensors: Sequence[Tensor], size: int) -> list[Tensor]:
        """Cut gate and up projection, then join them rank by rank."""
        gate, up = tensors
        return [torch.cat(pair) for pair in zip(_cut(gate, size, 0), _cut(up, size, 0), strict=True)]

    def whole(self, shards: Sequence[Tensor]) -> list[Tensor]:
        """Return gate and up projection."""
        pairs = [shard.chunk(2) for shard in shards]
        return [torch.cat([pair[part] for pair in pairs]) for part in range(2)]

    def pieces(self, shard: Tensor, size: int) -> list[Piece] | None:
        """Return the two halves."""
        return [(piece, 0) for piece in self.whole([shard])]


def padded_vocab_size(vocab_size: int, size: int) -> int:
    """Return the rows of a vocabulary, padded so that `size` ranks have equally many."""
    return -(-vocab_size // size) * size


def _cut(tensor: Tensor, size: int, dim: int) -> list[Tensor]:
    length = tensor.shape[dim]
    assert length % size == 0, f"{length} does not divide into {size} equal shards"
    return list(torch.split(tensor, length // size, dim))
