"""Scored groups of episodes and of single responses, and a plain run over the tokens that the policy sampled."""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from longshore.api.algorithm import Algorithm
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.backends.sums import CorrectionSums, GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, SampleKey, TrainerOptions
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.rollout.batch import ScoredGroup, ScoredResponse
from longshore_runtime.trainer.updates import batch_samples
from longshore_runtime.trajectories.episode import Branch, Episode
from longshore_runtime.trajectories.trajectory import EMPTY, TokenIds, Trajectory
from tests.contract.trainers.plans import Named, double_precision
from tests.contract.trainers.reference_losses import CLIP_BOTH_SIDES, CLIP_BY_RESPONSE, Response, reference_loss
from tests.contract.trainers.replicas import clips
from tests.contract.trainers.tiny_models import Family, build

VERSION = 7
"""Version of the weights of the round."""
RECORDS = [PromptRecord(row, "", np.array([5 + row, 90, 17]), "") for row in range(4)]
TURNS: Mapping[int, Sequence[int]] = {0: (3, 1, 4), 1: (1, 1, 1), 2: (2, 3, 2), 3: (4, 2, 3)}
"""Turns of each response, by row; those of row 1 act in no environment."""
BRANCHES: Mapping[tuple[int, int], Sequence[int]] = {(0, 2): (2,), (2, 0): (1, 3)}
"""Turns of the branches that an episode had before its last one, by row and response."""


@dataclass(frozen=True)
class Batch:
    """Groups of a step, and what was sampled of each response, written down token by token."""

    groups: tuple[ScoredGroup, ...]
    sampled: Mapping[SampleKey, tuple[bool, ...]]

    def samples(self, options: TrainerOptions) -> list[Sample]:
        """Return the samples of all groups."""
        return samples_of(self.groups, options)


def samples_of(groups: Sequence[ScoredGroup], options: TrainerOptions) -> list[Sample]:
    """Return the samples of groups, as the training loop makes them."""
    algorithm = Algorithm(
        steps=1,
        prompts_per_step=len(TURNS),
        responses_per_prompt=3,
        max_response_tokens=options.max_response_tokens,
        objective=options.objective,
    )
    return batch_samples(groups, RECORDS, algorithm, VERSION)


def make_batch() -> Batch:
    """Episodes whose observations are as long as their turns, or longer; all rewards of the last group are equal."""
    rng, sampled = np.random.default_rng(3), {}
    groups = []
    for row, turns in TURNS.items():
        responses = []
        for index, num_turns in enumerate(turns):
            one, branches = ResponseId(Draw(0, row), index), list[Branch]()
            for number, length in enumerate((*BRANCHES.get((row, index), ()), num_turns)):
                trajectory, sampled[one, number] = _trajectory(length, has_older_turn=index == 2, rng=rng)
                branches.append(Branch(_tokens(rng, 2 + index + number), None, [], trajectory))
            episode = None if row == 1 else Episode(tuple(branches), None, None, num_turns, 0, 0.0, 0)
            completion = Completion(str(one), trajectory, FinishReason.STOP, 0, episode=episode)
            responses.append(ScoredResponse(one, completion, 0.5 if row == 3 else rng.random(), timed_out=False))
        groups.append(ScoredGroup(Draw(0, row), tuple(responses)))
    return Batch(tuple(groups), sampled)


def _trajectory(
    num_turns: int, *, has_older_turn: bool, rng: np.random.Generator
) -> tuple[Trajectory, tuple[bool, ...]]:
    trajectory, sampled = EMPTY, list[bool]()
    for turn in range(num_turns):
        if turn:
            num_observed = int(rng.integers(3, 9))
            trajectory += Trajectory.observed(_tokens(rng, num_observed))
            sampled += [False] * num_observed
        num_tokens = int(rng.integers(1, 7))
        version = VERSION - 1 if has_older_turn and turn == 0 else VERSION
        trajectory += Trajectory.sampled(version, _tokens(rng, num_tokens), rng.normal(-5.1, 0.3, num_tokens))
        sampled += [True] * num_tokens
    return trajectory, tuple(sampled)


def _tokens(rng: np.random.Generator, num_tokens: int) -> TokenIds:
    return rng.integers(4, 100, size=num_tokens).astype(np.int32)


@dataclass(frozen=True)
class Plain:
    """What a plain run finds: the loss, its gradients, and sums over the sampled tokens."""

    gradients: Named
    loss: float
    """Mean loss, whatever the objective takes the mean over."""
    sums: GradientSums


@dataclass(frozen=True)
class Models:
    """A model to train, and one whose weights differ a little for the KL penalty."""

    policy: Path
    reference: Path


def make_models(directory: Path) -> Models:
    """Write both."""
    policy = build(directory / "policy", Family("qwen3", tied=False))
    reference = shutil.copytree(policy, directory / "reference")
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: weight + 0.01 * torch.randn(weight.shape, generator=generator)
        for name, weight in load_file(policy / "model.safetensors").items()
    }
    save_file(weights, reference / "model.safetensors", metadata={"format": "pt"})
    return Models(policy, reference)


def plain(models: Models, samples: Sequence[Sample], batch: Batch, options: TrainerOptions) -> Plain:
    """Transformers in double precision: one loss over the sampled tokens of the whole batch, and one backward."""
    policy, initial = (
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).double()
        for model in (models.policy, models.reference)
    )
    with double_precision():
        responses, sums = list[Response](), GradientSums()
        factors = list[float]()
        for sample in samples:
            in_loss = batch.sampled[sample.key]
            new, entropies = _log_probs(policy, sample, options.temperature)
            with torch.no_grad():
                start, _ = _log_probs(initial, sample, options.temperature)
            one = Response(new, _old(new.tolist(), sample, options), start.tolist(), sample.advantage, in_loss)
            responses.append(one)
            factor, correction = _corrected(one, sample, options)
            factors.append(factor)
            sums += _sums(one, entropies.tolist(), sample, correction, options)
        if options.rollout_correction is None:
            loss = reference_loss(_whole(samples, responses, options), options)
        else:
            loss = _corrected_loss(responses, factors, options)
        torch.autograd.backward(loss)
        gradients = {name: value.grad.numpy() for name, value in policy.named_parameters()}
        return Plain(gradients, loss.item(), sums)


def _whole(samples: Sequence[Sample], branches: Sequence[Response], options: TrainerOptions) -> list[Response]:
    """Return responses of all of their tokens, or branches with weights where each has a ratio of its own."""
    found: dict[ResponseId, list[Response]] = {}
    for sample, branch in zip(samples, branches, strict=True):
        found.setdefault(sample.response, []).append(branch)
    if options.objective.name in CLIP_BY_RESPONSE:  # type: ignore[attr-defined]
        counts = {one: sum(len(branch.places) for branch in of_one) for one, of_one in found.items()}
        return [
            replace(branch, weight=len(branch.places) / counts[sample.response])
            for sample, branch in zip(samples, branches, strict=True)
        ]
    return [
        Response(
            torch.cat([one.new for one in of_one]),
            [value for one in of_one for value in one.old],
            [value for one in of_one for value in one.initial],
            of_one[0].advantage,
            [value for one in of_one for value in one.in_loss],
        )
        for of_one in found.values()
    ]


def _log_probs(model: Any, sample: Sample, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of all tokens behind the prompt."""
    first, tokens = len(sample.prompt_tokens), torch.tensor([[*sample.prompt_tokens, *sample.trajectory.tokens]])
    everywhere = torch.log_softmax(model(tokens).logits[0] / temperature, dim=-1)[first - 1 : -1]
    entropies = torch.distributions.Categorical(logits=everywhere.detach()).entropy()
    return everywhere[torch.arange(len(everywhere)), tokens[0, first:]], entropies


def _old(new: Sequence[float], sample: Sample, options: TrainerOptions) -> list[float]:
    """Return what ratios are relative to, for all tokens."""
    engine = sample.trajectory.log_probs.tolist()
    if options.rollout_correction is not None:
        return list(new)
    if not options.objective.compares_with_trainer:
        return engine
    known = new if sample.old_log_probs is None else sample.old_log_probs.tolist()
    stale = _is_stale(sample)
    return [engine[place] if stale[place] else known[place] for place in range(len(engine))]


def _is_stale(sample: Sample) -> list[bool]:
    return [
        version is not None and version < VERSION
        for version, num_tokens in sample.trajectory.runs
        for _ in range(num_tokens)
    ]


def _corrected(one: Response, sample: Sample, options: TrainerOptions) -> tuple[float, CorrectionSums]:
    """Return the weight of a response: the product of the ratios of its sampled tokens, rejected if that is large."""
    if options.rollout_correction is None:
        return 1.0, CorrectionSums()
    engine = sample.trajectory.log_probs.tolist()
    log_ratios = [one.new[place].item() - engine[place] for place in one.places]
    product, number = math.exp(min(max(sum(log_ratios), -20.0), 20.0)), len(log_ratios)
    is_rejected = product > options.rollout_correction.rollout_rs_threshold
    sums = CorrectionSums(
        num_tokens=number,
        num_responses=1,
        kl=-sum(log_ratios),
        weight=number * product,
        num_compared=1,
        num_rejected_tokens=number * is_rejected,
        num_rejected_responses=int(is_rejected),
    )
    return 0.0 if is_rejected else min(product, options.rollout_correction.rollout_is_threshold), sums


def _corrected_loss(responses: Sequence[Response], factors: Sequence[float], options: TrainerOptions) -> Tensor:
    """Return a token mean whose ratios are 1."""
    losses = []
    for one, factor in zip(responses, factors, strict=True):
        for place in one.places:
            ratio, difference = (one.new[place] - one.old[place]).exp(), one.initial[place] - one.new[place]
            penalty = difference.exp() - difference - 1
            losses.append(options.kl_coefficient * penalty - factor * ratio * one.advantage)
    return torch.stack(losses).mean()


def _sums(
    one: Response, entropies: Sequence[float], sample: Sample, correction: CorrectionSums, options: TrainerOptions
) -> GradientSums:
    engine, stale, new = sample.trajectory.log_probs.tolist(), _is_stale(sample), one.new.tolist()
    compared = [abs(new[place] - engine[place]) for place in one.places if not stale[place]]
    differences = [one.initial[place] - new[place] for place in one.places]
    return GradientSums(
        num_tokens=len(one.in_loss),
        num_loss_tokens=len(one.places),
        kl=sum(math.exp(value) - value - 1 for value in differences) if options.kl_coefficient else 0.0,
        ppo_kl=sum(engine[place] - new[place] for place in one.places),
        entropy=sum(entropies[place] for place in one.places),
        clipped=_num_clipped(one, new, options),
        num_compared_tokens=len(compared),
        mismatch=sum(compared),
        mismatch_max=max(compared, default=0.0),
        correction=correction,
    )


def _num_clipped(one: Response, new: Sequence[float], options: TrainerOptions) -> int:
    log_ratios = [new[place] - one.old[place] for place in one.places]
    name = options.objective.name  # type: ignore[attr-defined]
    if name in CLIP_BY_RESPONSE:
        log_ratios = [sum(log_ratios) / len(log_ratios)] * len(log_ratios)
    low, high = clips(options)
    above, below = (
        (value > math.log1p(high) for value in log_ratios),
        (value < math.log1p(-low) for value in log_ratios),
    )
    if name in CLIP_BOTH_SIDES:
        return sum(above) + sum(below)
    return sum(above) if one.advantage > 0 else sum(below) if one.advantage < 0 else 0
