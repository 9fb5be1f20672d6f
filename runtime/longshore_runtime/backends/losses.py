"""Losses of policy-gradient training, from those of an objective. All tensors are flat, [response tokens].

Whatever the objective, a step's loss is a sum over tokens of weight * loss, divided by one denominator.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from longshore.api.algorithm import KlEstimator
from longshore.api.objectives.aggregation import token_weight
from longshore.api.objectives.custom import Custom
from longshore.api.objectives.objective import LossTokens, Objective, TokenLosses, TopTokens
from longshore.policy.old_log_probs import is_relative_to_trainer
from longshore_runtime.backends.gpu_failures import is_broken_gpu, is_lack_of_memory
from longshore_runtime.backends.objective_trial import FIELD
from longshore_runtime.backends.rollout_correction import correct
from longshore_runtime.backends.sums import CorrectionSums, GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.failure_text import error_with_place
from longshore_runtime.trajectories.trajectory import LogProbs


@dataclass(frozen=True)
class WeightedLosses:
    """Losses of loss-mask tokens; `total` carries the gradient, the others are for metrics."""

    total: Tensor
    """Weighted loss per token; its sum over the whole step, divided by the step's denominator, is the loss."""
    policy: Tensor
    """Policy-gradient loss per token, weighted in the same way."""
    kl: Tensor
    """KL estimate per token, not weighted."""
    clipped: Tensor
    """Indicator per token: 1 where clipping removed the gradient, or truncation cut the weight."""
    correction: CorrectionSums = field(default_factory=CorrectionSums)


@dataclass(frozen=True)
class ReferenceTokens:
    """What a frozen model says of the response tokens of a micro-batch, one sample after the other."""

    log_probs: Tensor | None = None
    """[tokens]: log-probabilities of the response tokens, if they are needed."""
    top_ids: Tensor | None = None
    """[tokens, number]: the most likely tokens in the place of each, if they are needed."""
    top_log_probs: Tensor | None = None
    """[tokens, number]: log-probabilities of the most likely tokens."""

    @classmethod
    def on_host(cls, top_ids: Tensor, top_log_probs: Tensor) -> "ReferenceTokens":
        """Return the most likely tokens in host memory: those of a whole update would take much of a GPU's."""
        return cls(None, top_ids.int().cpu(), top_log_probs.cpu())

    def with_targets(self, targets: Tensor) -> Tensor:
        """Return targets, and after each the most likely tokens: all whose log-probabilities are needed."""
        return targets if self.top_ids is None else torch.cat((targets.unsqueeze(-1), self.top_ids.to(targets)), -1)

    def split(self, log_probs: Tensor) -> tuple[Tensor, TopTokens | None]:
        """Return the log-probabilities of the targets alone, and the most likely tokens, out of `with_targets`."""
        if self.top_log_probs is None:
            return log_probs, None
        return log_probs[:, 0], TopTokens(log_probs[:, 1:], self.top_log_probs.to(log_probs))


NO_REFERENCE: Final = ReferenceTokens()


def sample_losses(
    samples: Sequence[Sample],
    log_probs: Tensor,
    entropies: Tensor,
    reference_log_probs: Tensor | None,
    options: TrainerOptions,
    top: TopTokens | None = None,
) -> tuple[Tensor, GradientSums]:
    """Compute the unreduced loss of whole samples, with gradient, and what is reported about them.

    The tensors have one value per response token, samples one after the other, and those of `top` a row. Tokens outside
    of the loss mask enter neither loss nor sums; `GradientSums.num_tokens` alone counts them.
    """

    def flat(arrays: Sequence[npt.NDArray[Any]], dtype: torch.dtype = log_probs.dtype) -> Tensor:
        values = np.concatenate(arrays) if arrays else np.empty(0)
        return torch.from_numpy(values).to(log_probs.device, dtype)

    kept = flat([sample.in_loss for sample in samples], torch.bool)
    lengths = [sample.num_loss_tokens for sample in samples]
    rollout = flat([sample.trajectory.log_probs for sample in samples])[kept]
    advantages = flat([sample.token_advantages for sample in samples])[kept]
    reference = None if reference_log_probs is None else reference_log_probs[kept]
    taught = [sample.teacher_log_probs for sample in samples if sample.teacher_log_probs is not None]
    assert len(taught) in (0, len(samples)), "some samples have no log-probabilities of the teacher"
    if reference is None and taught:
        reference = flat(taught)[kept]
    trained = log_probs[kept]
    known = [sample.old_log_probs for sample in samples if sample.old_log_probs is not None]
    assert len(known) in (0, len(samples)), "some samples have no old log-probabilities"
    old = flat(known)[kept] if known else None
    fresh = [np.arange(len(sample.trajectory)) >= sample.num_stale_tokens for sample in samples]
    is_fresh = flat(fresh, torch.bool)[kept]
    shares = [sample.share for sample in samples]
    bonus = entropies[kept] if options.entropy_coefficient else None
    top = top and TopTokens(top.log_probs[kept], top.teacher_log_probs[kept])
    losses = weighted_losses(
        trained, rollout, advantages, reference, lengths, options, old, is_fresh, shares, bonus, top
    )
    loss = losses.total.sum()
    difference = trained.detach() - rollout
    distances = difference[is_fresh].abs()
    return loss, GradientSums(
        num_tokens=len(log_probs),
        num_loss_tokens=len(trained),
        loss=loss.item(),
        policy_loss=losses.policy.sum().item(),
        kl=losses.kl.sum().item(),
        ppo_kl=-difference.sum().item(),
        entropy=entropies.detach()[kept].sum().item(),
        clipped=losses.clipped.sum().item(),
        num_compared_tokens=len(distances),
        mismatch=distances.sum().item(),
        mismatch_max=distances.max().item() if len(distances) else 0.0,
        correction=losses.correction,
    )


def by_sample(samples: Sequence[Sample], values: Tensor) -> list[LogProbs]:
    """Split log-probabilities of all response tokens by sample."""
    pieces = torch.split(values.float().cpu(), [sample.num_response_tokens for sample in samples])
    return [piece.numpy() for piece in pieces]


def token_log_probs(
    hidden: Tensor,
    head: torch.nn.Module,
    targets: Tensor,
    temperature: float,
    chunk_tokens: int,
    *,
    differentiates_entropies: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities of `targets` under softmax(head(hidden) / temperature), and entropies.

    Logits exist for `chunk_tokens` tokens at a time; the backward pass computes those of each chunk again. A gradient
    of the entropies needs the memory of a chunk once more.

    Args:
        targets: [tokens], or [tokens, any number] for the log-probabilities of several tokens in each place.
    """
    if len(targets) <= chunk_tokens:
        return _chunk_log_probs(hidden, head, targets, temperature, differentiates_entropies)
    pieces = [
        checkpoint(_chunk_log_probs, part, head, wanted, temperature, differentiates_entropies, use_reentrant=False)
        for part, wanted in zip(torch.split(hidden, chunk_tokens), torch.split(targets, chunk_tokens), strict=True)
    ]
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def most_likely_tokens(
    hidden: Tensor, head: torch.nn.Module, temperature: float, chunk_tokens: int, num_tokens: int, vocab_size: int
) -> tuple[Tensor, Tensor]:
    """Compute ids and log-probabilities of the most likely tokens in each place, [tokens, number], without gradient.

    These are at most `num_tokens` of the first `vocab_size` tokens: the output layer of a teacher may have more rows
    than that of its student.
    """
    pieces = []
    for part in torch.split(hidden, chunk_tokens):
        logits = head(part).float() / temperature
        own = logits[:, :vocab_size]
        top = own.topk(min(num_tokens, own.shape[-1]))
        pieces.append((top.indices, top.values - logits.logsumexp(-1, keepdim=True)))
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def weighted_losses(
    log_probs: Tensor,
    rollout_log_probs: Tensor,
    advantages: Tensor,
    reference_log_probs: Tensor | None,
    lengths: Sequence[int],
    options: TrainerOptions,
    old_log_probs: Tensor | None = None,
    is_fresh: Tensor | None = None,
    shares: Sequence[float] | None = None,
    entropies: Tensor | None = None,
    top: TopTokens | None = None,
) -> WeightedLosses:
    """Compute policy-gradient loss, KL penalty and entropy bonus of loss-mask tokens of samples with these `lengths`.

    `shares`: which share of its response each sample is; None: each is a whole one. `entropies`: for the bonus.

    Ratios are relative to the distribution that sampled the tokens. That is the engine's; where the objective compares
    with the trainer, it is the trainer's at the start of the step (`old_log_probs`; None: the weights are the ones
    being trained) at tokens that the round's own weights sampled (`is_fresh`; None: all). With rollout correction every
    ratio is relative to the trainer's, and what these are to the engine's is a weight without gradient.
    """
    correction = None
    old = rollout_log_probs
    if is_relative_to_trainer(options.objective, options.rollout_correction):
        old = log_probs.detach() if old_log_probs is None else old_log_probs
    if options.rollout_correction is not None:
        correction = correct(old - rollout_log_probs, lengths, options.rollout_correction)
    elif is_fresh is not None:
        old = torch.where(is_fresh, old, rollout_log_probs)
    present = [length for length in lengths if length > 0]
    tokens = LossTokens(log_probs, old, rollout_log_probs, advantages, present, reference_log_probs, top)
    found = _losses_of(options.objective, tokens)
    policy = found.loss if correction is None else correction.weights * found.loss
    kl = penalty = torch.zeros_like(log_probs)
    if top is not None:  # Of a teacher, which comes without a penalty.
        kl = top.divergence
    elif reference_log_probs is not None:
        kl = penalty = estimated_kl(options.kl_estimator, log_probs, reference_log_probs)
        if options.kl_bias_correction:
            penalty = kl * options.objective.importance_ratio(tokens)
    extra = options.kl_coefficient * penalty
    if entropies is not None:
        extra = extra - options.entropy_coefficient * entropies
    weights = _weights(lengths, shares or [1.0] * len(lengths), log_probs, options)
    return WeightedLosses(
        total=weights * (policy + extra),
        policy=(weights * policy).detach(),
        kl=kl.detach(),
        clipped=torch.zeros_like(policy) if found.is_clipped is None else found.is_clipped.detach().float(),
        correction=CorrectionSums() if correction is None else correction.sums,
    )


def _losses_of(objective: Objective, tokens: LossTokens) -> TokenLosses:
    """Return the losses of the tokens; raises UserError for what a function of the user's does wrong."""
    if not len(tokens.log_probs):  # Of a rank that only takes part: the graph is kept, and nobody's function is asked.
        return TokenLosses(tokens.log_probs)
    if not isinstance(objective, Custom):
        return objective.token_losses(tokens)
    path = f"{FIELD}: {objective.import_path}"
    try:
        found = objective.token_losses(tokens)
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError) or is_lack_of_memory(str(error)) or is_broken_gpu(str(error)):
            raise  # Asynchronous failures of a GPU surface anywhere.
        raise UserError(f"{path} raises {error_with_place(error)}; correct it") from error
    if found.loss.shape != tokens.log_probs.shape:  # It would be broadcast.
        wrong = f"a tensor of shape {list(found.loss.shape)} for {list(tokens.log_probs.shape)} tokens"
        raise UserError(f"{path} returns {wrong}; return the loss of each token")
    return found


def estimated_kl(estimator: KlEstimator, log_probs: Tensor, reference_log_probs: Tensor) -> Tensor:
    """Estimate KL(policy || reference) at tokens that the policy sampled, with Schulman's k1, k2 or k3."""
    difference = log_probs - reference_log_probs
    match estimator:
        case KlEstimator.K1:
            return difference
        case KlEstimator.K2:
            return 0.5 * difference.square()
        case KlEstimator.K3:  # Unbiased, and never negative.
            return torch.exp(-difference) + difference - 1.0


def _weights(lengths: Sequence[int], shares: Sequence[float], like: Tensor, options: TrainerOptions) -> Tensor:
    aggregation = options.objective.aggregation
    weights = [
        token_weight(aggregation, length, share) if length else 0.0
        for length, share in zip(lengths, shares, strict=True)
    ]
    by_token = np.repeat(np.array(weights), np.array(lengths, dtype=np.int64))
    return torch.from_numpy(by_token).to(like.device, like.dtype)


def _chunk_log_probs(
    hidden: Tensor, head: torch.nn.Module, targets: Tensor, temperature: float, differentiates_entropies: bool
) -> tuple[Tensor, Tensor]:
    logits = head(hidden)
    if differentiates_entropies:
        values = functional.log_softmax(logits.float() / temperature, dim=-1)
        # FSDP warns of views.
        return values.gather(-1, columns(targets)).view_as(targets).clone(), -(values.exp() * values).sum(-1)
    found: tuple[Tensor, Tensor] = _LogProbsAndEntropies.apply(logits, targets, temperature)  # type: ignore[no-untyped-call]
    return found


def columns(values: Tensor) -> Tensor:
    """Return [tokens, number] of [tokens] or [tokens, number]."""
    return values.unsqueeze(-1) if values.dim() == 1 else values


class _LogProbsAndEntropies(torch.autograd.Function):
    """Log-probabilities of tokens and entropies, with one exponential per logit, which is also that of the gradient.

    Torch's log-softmax, an entropy from it and the gradient compute it three times, which costs twice as much in all.
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Take logits [tokens, vocabulary] of any type, and targets as in `token_log_probs`.

        Entropies have no gradient.
        """
        # In place, because nothing else needs the logits: a linear head keeps its inputs only.
        logits = given.float().div_(temperature)
        largest = logits.amax(-1, keepdim=True)
        powers = (logits - largest).exp_()
        sums = powers.sum(-1, keepdim=True)
        log_sums, wanted = largest + sums.log(), columns(targets)
        log_probs = (logits.gather(-1, wanted) - log_sums).view_as(targets)
        entropies = (log_sums - torch.linalg.vecdot(powers, logits).unsqueeze(-1) / sums).squeeze(-1)
        ctx.save_for_backward(powers, sums, wanted)
        ctx.temperature, ctx.dtype = temperature, given.dtype
        ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        """Compute the gradient in the memory of the exponentials: a graph serves one backward pass."""
        powers, sums, wanted = ctx.saved_tensors
        scaled = columns(gradient) / ctx.temperature
        shares = -scaled.sum(-1, keepdim=True) / sums
        return powers.mul_(shares).scatter_add_(-1, wanted, scaled).to(ctx.dtype), None, None
