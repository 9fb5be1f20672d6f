"""What training runs are given: in which parts, on which replicas, in which order; and a plain run to compare with."""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import lr_scheduler
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM

from longshore.api.algorithm import LearningRateSchedule
from longshore.api.correction import RolloutCorrection
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions
from longshore_runtime.backends.world import World
from tests.contract.trainers.replicas import OPTIONS, clips, make_samples, own_part

Named = Mapping[str, Any]
"""Arrays by Hugging Face name."""


@dataclass(frozen=True)
class Step:
    """One update: each replica's parts, in order, one `accumulate` each, and the denominator."""

    parts: tuple[tuple[tuple[Sample, ...], ...], ...]
    denominator: float
    sleepers: frozenset[int] = frozenset()
    """Replicas that sleep until they are given their first part, and again between parts."""


@dataclass(frozen=True)
class Trained:
    """Gradients of the first step and its sums, the norm of every step's, and weights after all steps."""

    gradients: Named
    norms: tuple[float, ...]
    weights: Named
    sums: GradientSums = field(default_factory=GradientSums)
    """What the replica reports of the first step."""


SOME_CLIPPED = replace(
    OPTIONS,
    max_grad_norm=2.0,
    learning_rate_schedule=LearningRateSchedule.COSINE,
    warmup_steps=2,
    num_updates=4,
    min_learning_rate_ratio=0.1,
    adam_beta1=0.8,
    adam_beta2=0.98,
    adam_epsilon=1e-6,
)
"""Some steps' gradients are clipped, and others not: clipping every one would hide a wrong scale. Nothing of the
optimizer is a default, and its three steps are in the warm-up, at the peak, and past it."""
CORRECTED = replace(SOME_CLIPPED, rollout_correction=RolloutCorrection(rollout_is_threshold=1.5))
BATCHES = tuple(tuple(make_samples(seed=seed)) for seed in range(3))


def plan(num_replicas: int, seed: int, late: Collection[int] = (), idle: Collection[int] = ()) -> tuple[Step, ...]:
    """Every batch shuffled, dealt out to replicas unevenly, and cut into parts at random.

    Replicas that are `late` sleep at first and get one of the last samples each, `idle` ones nothing.
    """
    rng = random.Random(seed)
    early = [replica for replica in range(num_replicas) if replica not in {*late, *idle}]
    return tuple(
        Step(_deal(batch, num_replicas, early, late, rng), count_tokens(batch), frozenset({*late, *idle}))
        for batch in BATCHES
    )


def count_tokens(batch: Sequence[Sample]) -> float:
    """The denominator of a token mean."""
    return float(sum(sample.num_response_tokens for sample in batch))


def _deal(
    batch: Sequence[Sample], num_replicas: int, early: Sequence[int], late: Collection[int], rng: random.Random
) -> tuple[tuple[tuple[Sample, ...], ...], ...]:
    hands: list[list[Sample]] = [[] for _ in range(num_replicas)]
    shuffled = rng.sample(batch, len(batch))
    for replica in late:
        hands[replica].append(shuffled.pop())
    for sample in shuffled:
        hands[rng.choice(early)].append(sample)
    return tuple(tuple(_cut(hand, rng)) for hand in hands)


def _cut(hand: list[Sample], rng: random.Random) -> Iterator[tuple[Sample, ...]]:
    while hand:
        number = rng.randint(1, len(hand))
        yield tuple(hand[:number])
        hand = hand[number:]


def plain(model: Path, options: TrainerOptions = SOME_CLIPPED) -> Trained:
    """Transformers in double precision: the whole batch in one loss, one backward, torch's own clipping and AdamW."""
    policy, initial = (
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, experts_implementation="eager").double()
        for _ in range(2)
    )
    with double_precision():
        optimizer = torch.optim.AdamW(
            policy.parameters(),
            lr=options.learning_rate,
            betas=(options.adam_beta1, options.adam_beta2),
            eps=options.adam_epsilon,
            weight_decay=options.weight_decay,
        )
        schedule = _torch_schedule(optimizer, options)
        gradients: dict[str, Any] = {}
        norms = []
        for batch in BATCHES:
            optimizer.zero_grad()
            total = torch.stack([sample_loss(policy, initial, sample, options) for sample in batch]).sum()
            torch.autograd.backward(total / count_tokens(batch))
            gradients = gradients or {name: p.grad.numpy().copy() for name, p in policy.named_parameters()}
            norms.append(float(torch.nn.utils.clip_grad_norm_(policy.parameters(), options.max_grad_norm)))
            optimizer.step()
            schedule.step()
        return Trained(gradients, tuple(norms), {name: p.detach().numpy() for name, p in policy.named_parameters()})


def _torch_schedule(optimizer: torch.optim.Optimizer, options: TrainerOptions) -> Any:
    """Torch's own: a warm-up that begins with one share, and half a cosine."""
    rising, rate = options.warmup_steps, options.learning_rate
    warm_up = lr_scheduler.LinearLR(optimizer, 1 / rising, 1.0, total_iters=rising - 1)
    falling = lr_scheduler.CosineAnnealingLR(
        optimizer, options.num_updates - rising + 1, eta_min=options.min_learning_rate_ratio * rate
    )
    return lr_scheduler.SequentialLR(optimizer, [warm_up, falling], milestones=[rising - 1])


def sample_loss(policy: Any, initial: Any, sample: Sample, options: TrainerOptions) -> Tensor:
    new, rollout = token_log_probs(policy, sample, options.temperature), torch.tensor(sample.trajectory.log_probs)
    old, weight = rollout, 1.0
    if options.rollout_correction is not None:
        old = new.detach() if sample.old_log_probs is None else torch.tensor(sample.old_log_probs)
        product = (old - rollout).sum().clamp(-20.0, 20.0).exp().item()  # Bounds of verl's.
        weight = 0.0 if product > 3.0 else min(product, options.rollout_correction.rollout_is_threshold)
    with torch.no_grad():
        start = token_log_probs(initial, sample, options.temperature)
    ratio, advantage = (new - old).exp(), sample.advantage
    low, high = clips(options)
    gain = torch.minimum(ratio * advantage, ratio.clip(1 - low, 1 + high) * advantage)
    penalty = (start - new).exp() - (start - new) - 1
    return (options.kl_coefficient * penalty - weight * gain).sum()


def token_log_probs(model: Any, sample: Sample, temperature: float) -> Tensor:
    first, tokens = len(sample.prompt_tokens), torch.tensor([[*sample.prompt_tokens, *sample.trajectory.tokens]])
    everywhere = torch.log_softmax(model(tokens).logits[0] / temperature, dim=-1)
    places = torch.arange(first, tokens.shape[1])
    return everywhere[places - 1, tokens[0, places]]


def train_torch(
    world: World,
    model: Path,
    steps: Sequence[Step],
    double: bool,
    sizes: Any = None,
    options: Any = None,
    reference: Path | None = None,
) -> Trained:
    """What one replica of the torch trainer makes of a plan, on each of its ranks.

    Gradients are the replica's own, before they are added up. `reference`: another model for the KL penalty.
    """
    from longshore_runtime.backends.torch_trainer import TorchTrainer

    with double_models(double):
        trainer = TorchTrainer(model, options or SOME_CLIPPED, world, sizes, reference=reference)
    replica = trainer._replica.number
    with double_precision(double):
        sums = _accumulate(trainer, steps[0], replica, world, sizes)
        gradients = torch_gradients(trainer, steps[0].denominator)
        trainer.discard()
        norms = _train(trainer, steps, replica, world, sizes)
        return Trained(gradients, norms, {name: tensor.numpy() for name, tensor, _ in trainer.tensors()}, sums)


@contextmanager
def double_models(enabled: bool = True) -> Iterator[None]:
    """Make the models that torch trainers load double before their first pass, at which FSDP notes their type.

    They compute so within `double_precision`.
    """
    from longshore_runtime.backends.causal_lm import CausalLM

    verify: Any = CausalLM._require_plain_head

    def verify_doubles(model: CausalLM) -> None:
        verify(model.double() if enabled else model)

    CausalLM._require_plain_head = verify_doubles  # type: ignore[method-assign]
    try:
        with _DoublesAreGrouped():
            yield
    finally:
        CausalLM._require_plain_head = verify  # type: ignore[method-assign]


def torch_gradients(trainer: Any, denominator: float) -> Named:
    """What a replica of the torch trainer has accumulated, divided."""
    trainer._accumulation.collect()
    summed = {name: trainer._replica.whole(p.grad) for name, p in trainer._model.module.named_parameters()}
    return {name: gradient.numpy() / denominator for name, gradient in summed.items()}


def train_megatron(
    world: World,
    model: Path,
    steps: Sequence[Step],
    double: bool,
    sizes: Any,
    options: Any = None,
    reference: Path | None = None,
) -> Trained:
    """What Megatron makes of a plan; nothing but on the first rank of a replica. `reference`: see `train_torch`."""
    from longshore_runtime.backends.megatron.trainer import MegatronTrainer

    dtype = torch.float64 if double else torch.float32
    trainer = MegatronTrainer(model, options or SOME_CLIPPED, world, sizes, dtype, reference=reference)
    replica = sizes.replica(world.rank)
    sums = _accumulate(trainer, steps[0], replica, world, sizes)
    gradients = megatron_gradients(trainer, steps[0].denominator)
    trainer.discard()
    norms = _train(trainer, steps, replica, world, sizes)
    return Trained(gradients, norms, {name: t.numpy() for name, t in trainer.named_weights()}, sums)


def megatron_gradients(trainer: Any, denominator: float) -> Named:
    """What Megatron's update would clip: every rank owns parts of it after the reduction."""
    from longshore_runtime.backends.megatron.cpu import on_device

    optimizer, parameters = trainer._optimizer, dict(trainer._model.named_parameters())

    def shard(name: str) -> Tensor:
        whole = torch.zeros_like(parameters[name]).view(-1)
        for owned in optimizer._owned:
            if owned.parameter is parameters[name]:
                whole[owned.where] = owned.part.grad
        return optimizer.add_up(whole).view_as(parameters[name])

    trainer._accumulation.collect()
    with on_device(trainer._device):
        optimizer.reduce(denominator)
    return {name: gradient.numpy() for name, gradient in trainer._gathered(shard)}


def _train(
    trainer: Any, steps: Sequence[Step], replica: int, world: World, sizes: ParallelSizes | None
) -> tuple[float, ...]:
    norms = []
    for step in steps:
        _accumulate(trainer, step, replica, world, sizes)
        norms.append(trainer.update(step.denominator).grad_norm)
    return tuple(norms)


def _accumulate(trainer: Any, step: Step, replica: int, world: World, sizes: ParallelSizes | None) -> GradientSums:
    sums = GradientSums()
    for part in step.parts[replica]:
        if replica in step.sleepers:
            trainer.sleep()
        sums += trainer.accumulate(own_part(part, world, sizes))
    if replica in step.sleepers:
        trainer.sleep()
    return sums


def apart(one: Named, other: Named) -> float:
    """Largest relative distance, by norm, of two arrays of the same name."""
    assert one.keys() == other.keys()
    return max(
        float(np.linalg.norm(one[name] - other[name].astype(np.float64)) / np.linalg.norm(other[name])) for name in one
    )


Mistake = Callable[[Step], Step]


def wrong_denominator(step: Step) -> Step:
    """Count one token too many."""
    return replace(step, denominator=step.denominator + 1)


def dropped_sample(step: Step) -> Step:
    """Leave out the weightiest sample of one part."""
    return _with_weightiest(step, 0)


def doubled_sample(step: Step) -> Step:
    """Repeat the weightiest sample of one part."""
    return _with_weightiest(step, 2)


def _with_weightiest(step: Step, times: int) -> Step:
    first, *rest = step.parts[0]
    weightiest, *others = sorted(first, key=lambda sample: -abs(sample.advantage) * sample.num_response_tokens)
    return replace(step, parts=(((*[weightiest] * times, *others), *rest), *step.parts[1:]))


@contextmanager
def double_precision(enabled: bool = True) -> Iterator[None]:
    """Whatever asks for single precision gets double: models and trainers round to it in the middle otherwise."""
    if not enabled:
        yield
        return
    torch.set_default_dtype(torch.float64)
    try:
        with _SingleIsDouble(), _DoublesAreGrouped():
            yield
    finally:
        torch.set_default_dtype(torch.float32)


class _SingleIsDouble(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.float:
            return args[0].double()
        if func in (torch.Tensor.to, torch.Tensor.type):
            args = tuple(torch.float64 if value is torch.float32 else value for value in args)
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


class _DoublesAreGrouped(TorchFunctionMode):
    """Torch has no grouped product of doubles: transformers' own takes its place."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._grouped_mm and args[0].dtype is torch.float64:
            return torch.ops.transformers.grouped_mm_fallback(*args, offs=(kwargs or {})["offs"])
        return func(*args, **(kwargs or {}))
