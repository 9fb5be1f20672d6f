"""Compute log-probabilities and entropies when each tensor-parallel rank has a part of the vocabulary.

Only sums over the vocabulary cross ranks, and a teacher's most likely tokens, never all logits.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from longshore.checks.memory import logit_chunk_tokens
from longshore_runtime.backends.losses import columns


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
    from `vocab_size` on are padding. `targets`: as in `losses.token_log_probs`.
    """

    def chunk_log_probs(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits, first = _own_logits(hidden, head, temperature, group, vocab_size)
        log_probs, entropies = _LogProbs.apply(logits, targets - first, group)  # type: ignore[no-untyped-call]
        return log_probs, entropies

    chunk_tokens = logit_chunk_tokens(max(1, vocab_size // group.size()))
    if len(targets) <= chunk_tokens:
        return chunk_log_probs(hidden, targets)
    pieces = [
        checkpoint(chunk_log_probs, part, wanted, use_reentrant=False)
        for part, wanted in zip(torch.split(hidden, chunk_tokens), torch.split(targets, chunk_tokens), strict=True)
    ]
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def vocab_parallel_most_likely(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    temperature: float,
    group: dist.ProcessGroup,
    vocab_size: int,
    num_tokens: int,
    num_ids: int,
) -> tuple[Tensor, Tensor]:
    """Compute ids and log-probabilities of the most likely tokens, as `losses.most_likely_tokens` does.

    Each rank chooses among its own tokens, and all of them among the choices of all. Of the vocabulary, the first
    `num_ids` tokens count.
    """
    pieces = []
    for part in torch.split(hidden, logit_chunk_tokens(max(1, vocab_size // group.size()))):
        logits, first = _own_logits(part, head, temperature, group, vocab_size)
        log_sums = _log_sums(logits, group)
        here = logits[:, : max(0, num_ids - first)]
        top = here.topk(min(num_tokens, here.shape[-1]))
        missing = 0, num_tokens - top.values.shape[-1]
        values = _gathered(functional.pad(top.values - log_sums, missing, value=-torch.inf), group)
        ids = _gathered(functional.pad(top.indices + first, missing), group)
        best = values.topk(min(num_tokens, num_ids, vocab_size))
        pieces.append((ids.gather(-1, best.indices), best.values))
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def _own_logits(
    hidden: Tensor, head: Callable[[Tensor], Tensor], temperature: float, group: dist.ProcessGroup, vocab_size: int
) -> tuple[Tensor, int]:
    """Return this rank's part of the logits, without padding, and the first token of it."""
    logits = head(hidden)
    first = group.rank() * logits.shape[-1]
    logits = logits[:, : max(0, vocab_size - first)]
    assert logits.shape[-1], "a rank holds nothing but padding"
    return (logits if logits.dtype is torch.float64 else logits.float()) / temperature, first


def _log_sums(logits: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the logarithm of the sum of all exponentials, [tokens, 1]."""
    largest = logits.amax(-1, keepdim=True)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    return largest + _summed((logits - largest).exp().sum(-1, keepdim=True), group).log()


class _LogProbs(torch.autograd.Function):
    """Map (this rank's logits [tokens, part], targets counted from its first, group) to (log-probs, entropies)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
        values = logits - _log_sums(logits, group)
        probabilities, wanted = values.exp(), columns(targets)
        here = (wanted >= 0) & (wanted < logits.shape[-1])
        places = torch.where(here, wanted, 0)
        found = torch.where(here, values.gather(-1, places), 0.0)
        sums = _summed(torch.cat([found, -values.mul_(probabilities).sum(-1, keepdim=True)], -1), group)
        log_probs, entropies = sums[:, :-1].reshape(targets.shape), sums[:, -1]
        ctx.save_for_backward(probabilities, places, here, entropies)
        ctx.set_materialize_grads(False)
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient, of_entropies = gradients
        probabilities, places, here, entropies = ctx.saved_tensors
        result = torch.zeros_like(probabilities)
        if gradient is not None:
            each = columns(gradient)
            result -= each.sum(-1, keepdim=True) * probabilities
            result.scatter_add_(-1, places, each * here)
        if of_entropies is not None:  # -p * (log p + entropy), which is 0 where p is.
            values = torch.special.xlogy(probabilities, probabilities) + probabilities * entropies.unsqueeze(-1)
            result -= of_entropies.unsqueeze(-1) * values
        return result, None, None


def _gathered(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the columns of all ranks."""
    parts = [torch.empty_like(values) for _ in range(group.size())]
    dist.all_gather(parts, values, group=group)
    return torch.cat(parts, -1)


def _summed(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    dist.all_reduce(values, group=group)
    return values
