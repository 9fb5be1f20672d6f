"""Divide the tokens of a sequence among context-parallel ranks."""

import torch
from torch import Tensor


def padded_length(length: int, size: int) -> int:
    """Return the length after padding, with which every rank gets two equal chunks; one rank needs no padding."""
    multiple = 1 if size == 1 else 2 * size
    return -(-length // multiple) * multiple


def positions(num_tokens: int, size: int, rank: int) -> Tensor:
    """Return the positions of a rank's tokens: a chunk from the front and one from the back, to balance the work.

    Megatron's rotary embeddings assume the same division.
    """
    if size == 1:
        return torch.arange(num_tokens)
    chunks = torch.arange(num_tokens).chunk(2 * size)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])
