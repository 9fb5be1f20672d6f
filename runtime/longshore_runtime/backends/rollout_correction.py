"""Weights that correct for differences between the probabilities of engines and trainers.

Sources: truncated importance sampling (Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL
Training", 2025), masked importance sampling and rejection (Liu, Li et al., "When Speed Kills Stability", 2025), by the
names of verl's `rollout_corr_helper`; TRL's `vllm_importance_sampling_mode` is a part of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from longshore.api.correction import RolloutCorrection, RolloutIs, RolloutRs
from longshore_runtime.backends.sums import CorrectionSums

_BOUND: Final = 20.0
"""Bound of log-ratios, as in verl: products of thousands of ratios leave the range of numbers."""


@dataclass(frozen=True)
class CorrectedLosses:
    """Factors for the losses of tokens, without gradient, and what is reported about them."""

    weights: Tensor
    sums: CorrectionSums


def correct(log_ratio: Tensor, lengths: Sequence[int], options: RolloutCorrection) -> CorrectedLosses:
    """Compute weights of the loss-mask tokens of responses with these `lengths`; `log_ratio` is trainer to engine."""
    lengths = [length for length in lengths if length > 0]
    log_ratio = log_ratio.detach()
    weighed = _LEVELS[RolloutRs(options.rollout_is)](log_ratio, lengths).clamp(-_BOUND, _BOUND).exp()
    judged = _LEVELS[options.rollout_rs](log_ratio, lengths).clamp(-_BOUND, _BOUND).exp()
    is_kept = (judged <= options.rollout_rs_threshold) & (judged >= options.rollout_rs_threshold_lower)
    weights = weighed.clamp(max=options.rollout_is_threshold) * is_kept
    return CorrectedLosses(weights, _sums(log_ratio, weighed, ~is_kept, lengths, options))


def _token(log_ratio: Tensor, lengths: Sequence[int]) -> Tensor:
    return log_ratio


def _sequence(log_ratio: Tensor, lengths: Sequence[int]) -> Tensor:
    return _per_response(log_ratio, lengths, torch.sum)


def _geometric(log_ratio: Tensor, lengths: Sequence[int]) -> Tensor:
    return _per_response(log_ratio, lengths, torch.mean)


def _one(log_ratio: Tensor, lengths: Sequence[int]) -> Tensor:
    return torch.zeros_like(log_ratio)


_LEVELS: Final[dict[RolloutRs, Callable[[Tensor, Sequence[int]], Tensor]]] = {
    RolloutRs.NONE: _one,
    RolloutRs.TOKEN: _token,
    RolloutRs.SEQUENCE: _sequence,
    RolloutRs.GEOMETRIC: _geometric,
}
"""Log-ratio that a token is weighed or judged by."""


def _per_response(values: Tensor, lengths: Sequence[int], reduce: Callable[[Tensor], Tensor]) -> Tensor:
    responses = torch.split(values, list(lengths))
    return torch.cat([values[:0], *(reduce(response).expand(len(response)) for response in responses)])


def _sums(
    log_ratio: Tensor, weighed: Tensor, is_rejected: Tensor, lengths: Sequence[int], options: RolloutCorrection
) -> CorrectionSums:
    if not len(log_ratio):
        return CorrectionSums()
    upper = options.rollout_is_threshold
    bounded = weighed.clamp(1.0 / upper, upper)
    # A response that has one ratio counts once, wherever whole responses are counted.
    firsts = torch.tensor([0, *lengths[:-1]], device=weighed.device).cumsum(0)
    compared = weighed[firsts] if options.rollout_is is RolloutIs.SEQUENCE else weighed
    rejected = [bool(part.any()) for part in torch.split(is_rejected, list(lengths))]
    return CorrectionSums(
        num_tokens=len(log_ratio),
        num_responses=len(lengths),
        kl=-log_ratio.sum().item(),
        k3_kl=(log_ratio.clamp(-_BOUND, _BOUND).exp() - log_ratio - 1.0).sum().item(),
        weight=weighed.sum().item(),
        bounded=bounded.sum().item(),
        bounded_squared=bounded.square().sum().item(),
        weight_max=weighed.max().item(),
        weight_min=weighed.min().item(),
        num_compared=len(compared),
        high=int((compared > upper).sum().item()),
        low=int((compared < 1.0 / upper).sum().item()),
        num_rejected_tokens=int(is_rejected.sum().item()),
        num_rejected_responses=sum(rejected),
    )
