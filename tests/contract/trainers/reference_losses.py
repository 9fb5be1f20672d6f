"""The losses of a whole step as the papers write them, token by token; besides the options, no code of ours."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from longshore_runtime.backends.trainer_protocol import TrainerOptions

CLIP_BY_RESPONSE: Final = {"GSPO"}
"""Objectives with one ratio for a response, or for each branch of an episode."""
CLIP_BOTH_SIDES: Final = {"CISPO"}
"""Objectives whose clips do not depend on the sign of the advantage."""


@dataclass(frozen=True)
class Response:
    """One response: log-probabilities per token under the trained, the sampling and the initial weights."""

    new: Tensor
    old: Sequence[float]
    initial: Sequence[float]
    advantage: float
    in_loss: Sequence[bool]
    weight: float = 1.0
    """Share of a response that it is."""

    @property
    def places(self) -> list[int]:
        return [place for place, kept in enumerate(self.in_loss) if kept]


def reference_loss(batch: Sequence[Response], options: TrainerOptions) -> Tensor:
    """Loss of one step; 0 where no token is in the loss."""
    responses = [response for response in batch if response.places]
    return _LOSSES[options.objective.name](responses, options) if responses else torch.zeros((), dtype=torch.float64)


def _token_mean(responses: Sequence[Response], options: TrainerOptions) -> Tensor:
    losses = [_token(response, place, options) for response in responses for place in response.places]
    return torch.stack(losses).mean()


def _dr_grpo(responses: Sequence[Response], options: TrainerOptions) -> Tensor:
    per_response = [
        sum(_token(one, place, options) for place in one.places) / options.max_response_tokens for one in responses
    ]
    return _mean(per_response)


def _rloo(responses: Sequence[Response], options: TrainerOptions) -> Tensor:
    return _mean([sum(_token(one, place, options) for place in one.places) for one in responses])


def _gspo(responses: Sequence[Response], options: TrainerOptions) -> Tensor:
    losses = []
    for one in responses:
        likelihood_ratio = torch.exp(sum(one.new[place] - one.old[place] for place in one.places))
        ratio = likelihood_ratio ** (1 / len(one.places))
        penalty = _mean([_k3(one, place) for place in one.places])
        losses.append(one.weight * (_clip(ratio, one.advantage, options) + options.kl_coefficient * penalty))
    return sum(losses, torch.zeros((), dtype=torch.float64)) / sum(one.weight for one in responses)


def _cispo(responses: Sequence[Response], options: TrainerOptions) -> Tensor:
    losses = []
    for one in responses:
        for place in one.places:
            ratio = math.exp(one.new[place].item() - one.old[place])
            weight = min(max(ratio, 1 - options.objective.clip_low), 1 + options.objective.clip_high)
            penalty = options.kl_coefficient * _k3(one, place)
            losses.append(-weight * one.advantage * one.new[place] + penalty)
    return torch.stack(losses).mean()


def _gmpo(responses: Sequence[Response], options: TrainerOptions) -> Tensor:
    low, high = options.objective.clip_low, options.objective.clip_high
    losses = []
    for one in responses:
        logs = [one.new[place] - one.old[place] for place in one.places]
        if one.advantage > 0:
            logs = [log if log.item() < high else torch.tensor(high, dtype=log.dtype) for log in logs]
        if one.advantage < 0:
            logs = [log if log.item() > -low else torch.tensor(-low, dtype=log.dtype) for log in logs]
        penalty = options.kl_coefficient * _mean([_k3(one, place) for place in one.places])
        losses.append(one.weight * (penalty - torch.exp(_mean(logs)) * one.advantage))
    return sum(losses, torch.zeros((), dtype=torch.float64)) / sum(one.weight for one in responses)


def _sapo(responses: Sequence[Response], options: TrainerOptions) -> Tensor:
    def token(one: Response, place: int) -> Tensor:
        objective = options.objective
        steepness = objective.temperature_positive if one.advantage > 0 else objective.temperature_negative
        shifted = steepness * (torch.exp(one.new[place] - one.old[place]) - 1)
        gate = 4 / (steepness * (1 + torch.exp(-shifted)))
        return -gate * one.advantage + options.kl_coefficient * _k3(one, place)

    losses = [one.weight * _mean([token(one, place) for place in one.places]) for one in responses]
    return sum(losses, torch.zeros((), dtype=torch.float64)) / sum(one.weight for one in responses)


def _dppo(responses: Sequence[Response], options: TrainerOptions) -> Tensor:
    def token(one: Response, place: int) -> Tensor:
        new, objective = one.new[place].item(), options.objective
        moved = math.exp(new) - math.exp(one.old[place])
        is_far = moved > objective.divergence_high if one.advantage > 0 else moved < -objective.divergence_low
        weight = 0.0 if is_far else min(math.exp(new - one.old[place]), objective.max_ratio)
        return -weight * one.advantage * one.new[place]

    return _by_token(responses, options, token)


def _vespo(responses: Sequence[Response], options: TrainerOptions) -> Tensor:
    def token(one: Response, place: int) -> Tensor:
        ratio, objective = (
            math.exp(sum(one.new[place].item() - one.old[place] for place in one.places)),
            options.objective,
        )
        k, decay = objective.k_positive, objective.lambda_positive
        if one.advantage < 0:
            k, decay = objective.k_negative, objective.lambda_negative
        return -(ratio**k) * math.exp(decay * (1 - ratio)) * one.advantage * one.new[place]

    return _by_token(responses, options, token)


def _dro(responses: Sequence[Response], options: TrainerOptions) -> Tensor:
    def token(one: Response, place: int) -> Tensor:
        quadratic = options.objective.beta / 2 * (one.new[place] - one.old[place]) ** 2
        return quadratic - one.advantage * one.new[place]

    return _by_token(responses, options, token)


def _by_token(
    responses: Sequence[Response], options: TrainerOptions, loss: Callable[[Response, int], Tensor]
) -> Tensor:
    penalised = [loss(one, at) + options.kl_coefficient * _k3(one, at) for one in responses for at in one.places]
    return torch.stack(penalised).mean()


def _token(one: Response, place: int, options: TrainerOptions) -> Tensor:
    ratio = torch.exp(one.new[place] - one.old[place])
    return _clip(ratio, one.advantage, options) + options.kl_coefficient * _k3(one, place)


def _clip(ratio: Tensor, advantage: float, options: TrainerOptions) -> Tensor:
    """A gain is paid up to the clip; a loss is paid in full."""
    if advantage > 0 and ratio.item() > 1 + options.objective.clip_high:
        return torch.tensor(-(1 + options.objective.clip_high) * advantage, dtype=ratio.dtype)
    if advantage < 0 and ratio.item() < 1 - options.objective.clip_low:
        return torch.tensor(-(1 - options.objective.clip_low) * advantage, dtype=ratio.dtype)
    return -ratio * advantage


def _k3(one: Response, place: int) -> Tensor:
    inverse = torch.exp(one.initial[place] - one.new[place])
    return inverse - torch.log(inverse) - 1


def _mean(values: Sequence[Tensor | int]) -> Tensor:
    return sum(values, torch.zeros((), dtype=torch.float64)) / len(values)


_LOSSES: dict[str, Callable[[Sequence[Response], TrainerOptions], Tensor]] = {
    "GRPO": _token_mean,
    "DAPO": _token_mean,
    "GSPO": _gspo,
    "CISPO": _cispo,
    "DrGRPO": _dr_grpo,
    "RLOO": _rloo,
    "ReinforcePlusPlus": _token_mean,
    "GMPO": _gmpo,
    "SAPO": _sapo,
    "DPPO": _dppo,
    "VESPO": _vespo,
    "GPG": lambda responses, options: _by_token(responses, options, lambda one, place: -one.advantage * one.new[place]),
    "DRO": _dro,
}
