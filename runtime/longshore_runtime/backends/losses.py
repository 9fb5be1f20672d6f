"""Losses of policy-gradient training, per response token. All tensors are flat: one value per response token."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_TOKENS_PER_CHUNK = 4096
"""The vocabulary's log-probabilities exist for so many tokens at a time: they would dominate the memory otherwise."""


@dataclass(frozen=True)
class TokenLosses:
    """Losses of response tokens; `total` carries the gradient, the others are for metrics."""

    total: Tensor
    policy: Tensor
    kl: Tensor
    clipped: Tensor
    """1 where clipping removed the gradient."""


def token_log_probs(
    hidden: Tensor, head: torch.nn.Module, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of `targets` under softmax(head(hidden) / temperature), and entropies (without gradient)."""
    if len(targets) <= _TOKENS_PER_CHUNK:
        return _chunk_log_probs(hidden, head, targets, temperature)
    pieces = [
        checkpoint(_chunk_log_probs, part, head, wanted, temperature, use_reentrant=False)
        for part, wanted in zip(
            torch.split(hidden, _TOKENS_PER_CHUNK), torch.split(targets, _TOKENS_PER_CHUNK), strict=True
        )
    ]
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def grpo_token_losses(
    log_probs: Tensor,
    rollout_log_probs: Tensor,
    advantages: Tensor,
    reference_log_probs: Tensor | None,
    *,
    clip_low: float,
    clip_high: float,
    kl_coefficient: float,
) -> TokenLosses:
    """Clipped policy-gradient loss plus the KL penalty (DeepSeekMath, equations 3 and 4; DAPO's separate upper clip).

    The ratio is against the distribution that sampled the tokens. Nothing is normalised: whoever adds tokens up
    divides by the number of tokens of the whole step.
    """
    ratio = torch.exp(log_probs - rollout_log_probs)
    surrogate = ratio * advantages
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    policy = -torch.minimum(surrogate, bounded)
    kl = torch.zeros_like(log_probs) if reference_log_probs is None else k3(log_probs, reference_log_probs)
    return TokenLosses(
        total=policy + kl_coefficient * kl,
        policy=policy.detach(),
        kl=kl.detach(),
        clipped=(bounded < surrogate).detach().float(),
    )


def k3(log_probs: Tensor, reference_log_probs: Tensor) -> Tensor:
    """Estimate of KL(policy || reference) at tokens of the policy: unbiased and never negative (Schulman's k3)."""
    difference = reference_log_probs - log_probs
    return torch.exp(difference) - difference - 1.0


def _chunk_log_probs(
    hidden: Tensor, head: torch.nn.Module, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    values = functional.log_softmax(head(hidden).float() / temperature, dim=-1)
    with torch.no_grad():
        entropies = -(values.exp() * values).sum(-1)
    return values.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropies
