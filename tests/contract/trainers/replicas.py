"""Trainers under test: one of each kind, alone or as a world of processes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from longshore.api.algorithm import LearningRateSchedule
from longshore.api.objectives.cispo import Cispo
from longshore.api.objectives.objective import ClippedObjective, ClipRange
from longshore.api.objectives.registry import OBJECTIVES
from longshore.api.training import Lora
from longshore.policy.draws import Draw
from longshore_runtime.backends.fake_trainer import FakeTrainer
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, Trainer, TrainerOptions, UpdateReport
from longshore_runtime.backends.work_meter import WorkMeter
from longshore_runtime.backends.world import World
from longshore_runtime.trainer.group import rank_shares, step_denominator
from longshore_runtime.trajectories.trajectory import Trajectory
from longshore_runtime.weights.slices import Weights
from tests.contract.trainers.ranks import kept_ranks

BUILT_IN = [name for name, one in OBJECTIVES.items() if name not in ("Custom", "Distillation") and not one.has_critic]
"""Objectives with a loss of their own that need no other model; that of PPO is GRPO's."""
OPTIONS = TrainerOptions(
    learning_rate=1e-3,
    learning_rate_schedule=LearningRateSchedule.CONSTANT,
    warmup_steps=0,
    min_learning_rate_ratio=0.0,
    num_updates=100,
    adam_beta1=0.9,
    adam_beta2=0.95,
    adam_epsilon=1e-8,
    weight_decay=0.01,
    max_grad_norm=1.0,
    objective=OBJECTIVES["DAPO"],
    rollout_correction=None,
    max_response_tokens=64,
    kl_coefficient=0.05,
    temperature=0.8,
    max_tokens_per_micro_batch=64,
    seed=0,
)
LORA = Lora(rank=4, alpha=8)


class SeenMeter(WorkMeter):
    """Remembers all that it has shown."""

    def __init__(self) -> None:
        self.shown: list[float] = []
        self.shown_shares: list[float] = []
        super().__init__()

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "num_computed":
            self.shown.append(self.num_computed)
        if name == "loaded_share":
            self.shown_shares.append(self.loaded_share)


@dataclass(frozen=True)
class Kind:
    """How to make one kind of trainer."""

    name: str
    model: Path

    def start(
        self,
        options: TrainerOptions = OPTIONS,
        world: World | None = None,
        sizes: ParallelSizes | None = None,
        meter: WorkMeter | None = None,
    ) -> Trainer:
        """A rank; alone unless a world is given, and a replica of its own unless sizes are."""
        if self.name == "fake":
            return FakeTrainer(self.model, options, world, sizes, meter)
        import torch

        from longshore_runtime.backends.torch_trainer import TorchTrainer

        torch.set_num_threads(1)
        if self.name == "megatron":
            from longshore_runtime.backends.megatron.trainer import MegatronTrainer

            return MegatronTrainer(self.model, options, world, sizes, meter=meter)
        if self.name == "lora":
            options = replace(options, lora=LORA)
        return TorchTrainer(self.model, options, world, sizes, meter)

    @property
    def exact(self) -> bool:
        """Whether sums do not depend on their order at all."""
        return self.name == "fake"


@dataclass(frozen=True)
class Outcome:
    """One step of one replica."""

    sums: GradientSums
    report: UpdateReport
    weights: Weights


def step(trainer: Trainer, parts: Sequence[Sequence[Sample]], options: TrainerOptions = OPTIONS) -> Outcome:
    """Accumulate the parts one after the other, and update; the sums are those of all of them."""
    sums = sum((trainer.accumulate(part) for part in parts), GradientSums())
    samples = [sample for part in parts for sample in part]
    report = trainer.update(step_denominator(samples, options))
    return Outcome(sums, report, dict(trainer.weights()))


def world_step(
    kind: Kind, shares: Sequence[Sequence[Sample]], num_steps: int = 1, options: TrainerOptions = OPTIONS
) -> list[Outcome]:
    """The same as processes, one per share, that form one world; each does `num_steps` equal steps."""
    whole = step_denominator([sample for share in shares for sample in share], options)
    return kept_ranks(len(shares)).run(_replica_step, kind, shares, whole, num_steps, options)


def _replica_step(
    world: World, kind: Kind, shares: Sequence[Sequence[Sample]], whole: float, num_steps: int, options: TrainerOptions
) -> Outcome:
    trainer = kind.start(options, world)
    for _ in range(num_steps):
        sums = trainer.accumulate(shares[world.rank])
        report = trainer.update(whole)
    return Outcome(sums, report, dict(trainer.weights()))


def figures(sums: GradientSums) -> dict[str, float]:
    """All numbers of sums, by name."""
    own = {name: value for name, value in vars(sums).items() if name not in ("correction", "critic")}
    return own | vars(sums.correction) | {f"critic's {name}": value for name, value in vars(sums.critic).items()}


def make_samples(count: int = 12, seed: int = 0) -> list[Sample]:
    """Samples of very different lengths; some have no advantage, and some ratios are far enough from 1 to clip."""
    rng = np.random.default_rng(seed)
    samples = []
    for number in range(count):
        length = int(rng.integers(1, 6)) if number % 4 else int(rng.integers(40, 60))
        samples.append(
            Sample(
                draw=Draw(0, number // 4),
                index=number % 4,
                prompt_tokens=rng.integers(4, 100, size=rng.integers(1, 5)),
                trajectory=Trajectory.sampled(0, rng.integers(4, 100, size=length), rng.normal(-4.8, 0.3, size=length)),
                advantage=0.0 if number % 3 == 2 else float(rng.normal()),
                reward=float(rng.random()),
            )
        )
    return samples


def with_masks(samples: Sequence[Sample]) -> list[Sample]:
    """Every second sample begins with stale tokens, which are left out; of every sixth nothing is left."""
    masked = []
    for number, sample in enumerate(samples):
        length = sample.num_response_tokens
        stale = 0 if number % 2 else length if number % 6 == 0 else length // 2
        mask = tuple(place >= stale for place in range(length))
        masked.append(replace(sample, loss_mask=mask, num_stale_tokens=stale))
    return masked


def own_part(samples: Sequence[Sample], world: World, sizes: ParallelSizes | None) -> Sequence[Sample]:
    """Return the samples that a rank gets of those of its replica."""
    if sizes is None or not sizes.deals_samples:
        return samples
    return rank_shares(samples, sizes.fsdp)[world.rank % sizes.fsdp]


def with_old(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples of a later update, where trainer and engine gave every token the same log-probability.

    So all ratios are relative to the same.
    """
    return [replace(sample, old_log_probs=sample.trajectory.log_probs) for sample in samples]


def options_of(name: str, options: TrainerOptions = OPTIONS) -> TrainerOptions:
    """Options of one objective, whose clips, if it has any, are wide enough for ratios on both sides of them."""
    options = replace(options, objective=OBJECTIVES[name])
    return clipped_at(0.2, 0.28, options) if isinstance(options.objective, ClippedObjective | Cispo) else options


def clipped_at(low: float, high: float, options: TrainerOptions) -> TrainerOptions:
    """The same options with other clips."""
    assert isinstance(options.objective, ClipRange)
    return replace(options, objective=options.objective.model_copy(update={"clip_low": low, "clip_high": high}))


def clips(options: TrainerOptions) -> tuple[float, float]:
    """Distances from 1 at which ratios are clipped."""
    assert isinstance(options.objective, ClipRange)
    return options.objective.clip_low, options.objective.clip_high


def without_kl(options: TrainerOptions = OPTIONS) -> TrainerOptions:
    """Options without a reference model."""
    return replace(options, kl_coefficient=0.0)


def assert_same_weights(kind: Kind, before: Weights, one: Weights, other: Weights) -> None:
    """Equal bit by bit where sums are exact; otherwise the two moved alike, to fp32 accuracy."""
    assert one.keys() == other.keys()
    if kind.exact:
        assert all(np.array_equal(one[name], other[name]) for name in one)
        return
    moved = np.concatenate([(one[name] - before[name]).ravel() for name in one])
    apart = np.concatenate([(one[name] - other[name]).ravel() for name in one])
    assert np.linalg.norm(moved) > 0
    assert np.linalg.norm(apart) < 2e-3 * np.linalg.norm(moved)
