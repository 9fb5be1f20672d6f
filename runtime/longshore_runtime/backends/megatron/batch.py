"""A micro-batch as a rank sees it: its tokens, and which of them predict a response token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longshore_runtime.backends.megatron.context import padded_length, positions
from longshore_runtime.backends.trainer_protocol import Sample


@dataclass(frozen=True)
class MicroBatch:
    """Right-padded samples; response tokens are numbered sample by sample."""

    samples: tuple[Sample, ...]
    tokens: Tensor
    """Token ids, [samples, tokens of this rank]."""
    positions: Tensor
    """Positions of this rank's tokens in their sequences, alike in every row."""
    numbers: Tensor
    """Number of the response token that a token predicts, or -1; same shape as `tokens`."""
    num_response_tokens: int

    @property
    def predicts(self) -> Tensor:
        """Mask of the tokens that predict a response token."""
        return self.numbers >= 0

    @property
    def targets(self) -> Tensor:
        """All response tokens, in the order of their numbers."""
        tokens = np.concatenate([sample.trajectory.tokens for sample in self.samples])
        return torch.from_numpy(tokens).long().to(self.tokens.device)


def micro_batch(samples: Sequence[Sample], size: int, rank: int, device: torch.device) -> MicroBatch:
    """Build the micro-batch of context-parallel rank `rank` of `size`."""
    lengths = [sample.num_tokens for sample in samples]
    width = padded_length(max(lengths), size)
    tokens = torch.zeros(len(samples), width, dtype=torch.long)
    numbers = torch.full_like(tokens, -1)
    count = 0
    for row, (sample, length) in enumerate(zip(samples, lengths, strict=True)):
        tokens[row, :length] = torch.from_numpy(np.concatenate((sample.prompt_tokens, sample.trajectory.tokens)))
        num_response_tokens = sample.num_response_tokens
        first = len(sample.prompt_tokens) - 1
        numbers[row, first : length - 1] = torch.arange(count, count + num_response_tokens)
        count += num_response_tokens
    mine = positions(width, size, rank)
    return MicroBatch(
        tuple(samples),
        tokens[:, mine].to(device),
        mine.expand(len(samples), -1).to(device),
        numbers[:, mine].to(device),
        count,
    )
