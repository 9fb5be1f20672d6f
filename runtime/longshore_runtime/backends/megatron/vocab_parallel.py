"""Compute log-probabilities and entropies when each tensor-parallel rank has a part of the vocabulary.

Only sums over the vocabulary cross ranks: three numbers per token, never the logits.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longshore.checks.memory import logit_chunk_tokens


def vocab_parallel_log_probs(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    targets: Tensor,
    temperature: float,
    group: dist.ProcessGroup,
    vocab_size: int,
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities of `targets` under softmax(logits / temperature), and entropies.

    `head` gives this rank's part of the logits; equal parts, one after the other, are the vocabulary, of which entries
    from `vocab_size` on are padding.
    """

    def chunk_log_probs(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(hidden)
        first = group.rank() * logits.shape[-1]
        logits = logits[:, : max(0, vocab_size - first)]
        assert logits.shape[-1], "a rank holds nothing but padding"
        logits = logits if logits.dtype is torch.float64 else logits.float()
        log_probs, entropies = _LogProbs.apply(logits / temperature, targets - first, group)  # type: ignore[no-untyped-call]
        return log_probs, entropies

    chunk_tokens = logit_chunk_tokens(max(1, vocab_size // group.size()))
    if len(targets) <= chunk_tokens:
        return chunk_log_probs(hidden, targets)
    pieces = [
        checkpoint(chunk_log_probs, part, wanted, use_reentrant=False)
        for part, wanted in zip(torch.split(hidden, chunk_tokens), torch.split(targets, chunk_tokens), strict=True)
    ]
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


class _LogProbs(torch.autograd.Function):
    """Map (this rank's logits [tokens, part], targets counted from its first, group) to (log-probs, entropies)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
        largest = logits.amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        values = logits - largest.unsqueeze(-1)
        values -= _summed(values.exp().sum(-1), group).log().unsqueeze(-1)
        probabilities = values.exp()
        here = (targets >= 0) & (targets < logits.shape[-1])
        places = torch.where(here, targets, 0).unsqueeze(-1)
        found = torch.where(here, values.gather(-1, places).squeeze(-1), 0.0)
        log_probs, entropies = _summed(torch.stack([found, -values.mul_(probabilities).sum(-1)]), group)
        ctx.save_for_backward(probabilities, places, here, entropies)
        ctx.set_materialize_grads(False)
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient, of_entropies = gradients
        probabilities, places, here, entropies = ctx.saved_tensors
        result = torch.zeros_like(probabilities)
        if gradient is not None:
            result -= gradient.unsqueeze(-1) * probabilities
            result.scatter_add_(-1, places, (gradient * here).unsqueeze(-1))
        if of_entropies is not None:  # -p * (log p + entropy), which is 0 where p is.
            values = torch.special.xlogy(probabilities, probabilities) + probabilities * entropies.unsqueeze(-1)
            result -= of_entropies.unsqueeze(-1) * values
        return result, None, None


def _summed(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    dist.all_reduce(values, group=group)
    return values
