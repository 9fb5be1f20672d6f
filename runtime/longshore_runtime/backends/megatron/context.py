"""Which tokens of a sequence a context-parallel rank holds."""

import torch
from torch import Tensor


def padded_length(length: int, size: int) -> int:
    """Tokens after padding, so that every rank gets two equal chunks; no padding for one rank."""
    multiple = 1 if size == 1 else 2 * size
    return -(-length // multiple) * multiple


def positions(num_tokens: int, size: int, rank: int) -> Tensor:
    """Positions of a rank's tokens: one chunk from the front and one from the back, since later ones attend to more.

    Megatron's rotary embeddings make the same cut.
    """
    if size == 1:
        return torch.arange(num_tokens)
    chunks = torch.arange(num_tokens).chunk(2 * size)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])
