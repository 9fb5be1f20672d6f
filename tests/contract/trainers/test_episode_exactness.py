"""Episodes are trained on as one plain backward over what the policy sampled: observations have no part in it."""

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from longshore.api.correction import RolloutCorrection
from longshore.policy.handover import HandoverQueue
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions, TrainResult, UpdateReport
from longshore_runtime.backends.world import World
from longshore_runtime.clock import SystemClock
from longshore_runtime.rollout.events import Event, GradientsDone
from longshore_runtime.trainer.group import PendingUpdate, shares, step_denominator
from longshore_runtime.trainer.streaming import StreamedUpdate
from longshore_runtime.trainer.updates import StepUpdates, StepWork
from tests.contract.trainers.episodes import RECORDS, Models, Plain, make_batch, make_models, plain, samples_of
from tests.contract.trainers.plans import (
    Named,
    Step,
    Trained,
    apart,
    double_models,
    double_precision,
    megatron_gradients,
    torch_gradients,
    train_megatron,
    train_torch,
)
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.replicas import figures, options_of, with_old, without_kl

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

EXACT = 1e-10
COMPARED = figures(GradientSums()).keys() - {
    *("loss", "policy_loss"),
    *("k3_kl", "bounded", "bounded_squared", "weight_max", "weight_min", "high", "low"),
}
BATCH = make_batch()
OBJECTIVES = pytest.mark.parametrize("name", ["GRPO", "DAPO", "GSPO", "DrGRPO", "CISPO", "RLOO"])
TRAINERS = pytest.mark.parametrize("train", [train_torch, train_megatron], ids=["torch", "megatron"])
SOME_REJECTED = replace(options_of("GRPO"), rollout_correction=RolloutCorrection(rollout_is_threshold=1.5))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


def steps_of(samples: Sequence[Sample], options: TrainerOptions, num_replicas: int = 1) -> tuple[Step, ...]:
    """One step, in which every replica gets its share in two parts."""
    dealt = shares(samples, num_replicas)
    return (Step(tuple((tuple(hand[::2]), tuple(hand[1::2])) for hand in dealt), step_denominator(samples, options)),)


def assert_exact(gradients: Named, sums: GradientSums, denominator: float, wanted: Plain) -> None:
    """Compare all that the plain run finds; other sums are functions of the same ratios."""
    assert apart(gradients, wanted.gradients) < EXACT
    assert sums.loss / denominator == pytest.approx(wanted.loss, rel=EXACT)
    found, expected = figures(sums), figures(wanted.sums)
    assert {name: found[name] for name in COMPARED} == pytest.approx(
        {name: expected[name] for name in COMPARED}, rel=EXACT, abs=EXACT
    )


@TRAINERS
@OBJECTIVES
def test_gradients_and_figures_are_those_of_sampled_tokens_alone(
    train: Callable[..., Trained], name: str, models: Models
) -> None:
    options = options_of(name)
    samples = with_old(BATCH.samples(options))
    wanted = plain(models, samples, BATCH, options)
    assert wanted.sums.clipped and wanted.sums.kl > 1, "the test sees clips and the penalty"
    steps = steps_of(samples, options)
    trained = train(World(), models.policy, steps, True, ParallelSizes(), options, models.reference)
    assert_exact(trained.gradients, trained.sums, steps[0].denominator, wanted)


@OBJECTIVES
def test_a_gradient_with_observed_tokens_is_another_one(name: str, models: Models) -> None:
    options = options_of(name)
    samples = with_old(BATCH.samples(options))
    wanted = plain(models, samples, BATCH, options)
    everything = [replace(sample, loss_mask=None) for sample in samples]
    trained = train_torch(World(), models.policy, steps_of(everything, options), True, None, options, models.reference)
    assert apart(trained.gradients, wanted.gradients) > 0.01


@TRAINERS
def test_the_ratio_of_an_episode_to_its_engine_is_that_of_its_sampled_tokens(
    train: Callable[..., Trained], models: Models
) -> None:
    samples = BATCH.samples(SOME_REJECTED)
    wanted = plain(models, samples, BATCH, SOME_REJECTED)
    assert 0 < wanted.sums.correction.num_rejected_responses < len(samples)
    steps = steps_of(samples, SOME_REJECTED)
    trained = train(World(), models.policy, steps, True, ParallelSizes(), SOME_REJECTED, models.reference)
    assert_exact(trained.gradients, trained.sums, steps[0].denominator, wanted)


@pytest.mark.parametrize(
    ("train", "sizes"),
    [
        pytest.param(train_torch, ParallelSizes(fsdp=2), id="FSDP2"),
        pytest.param(train_megatron, ParallelSizes(context=2), id="CP2"),
        pytest.param(train_megatron, ParallelSizes(pipeline=2), id="PP2", marks=pytest.mark.soak),
        pytest.param(train_megatron, ParallelSizes(tensor=2), id="TP2", marks=pytest.mark.soak),
    ],
)
def test_two_ranks_hold_a_replica(train: Callable[..., Trained], sizes: ParallelSizes, models: Models) -> None:
    options = options_of("GSPO")
    samples = with_old(BATCH.samples(options))
    steps = steps_of(samples, options)
    first, second = kept_ranks(2).run(train, models.policy, steps, True, sizes, options, models.reference)
    assert_exact(first.gradients, first.sums, steps[0].denominator, plain(models, samples, BATCH, options))
    assert second.sums == first.sums


def test_two_replicas_share_episodes(models: Models) -> None:
    options = options_of("DrGRPO")
    samples = BATCH.samples(options)
    steps = steps_of(samples, options, num_replicas=2)
    first, second = kept_ranks(2).run(train_torch, models.policy, steps, True, None, options, models.reference)
    added = {name: gradient + second.gradients[name] for name, gradient in first.gradients.items()}
    sums, wanted = first.sums + second.sums, plain(models, samples, BATCH, options)
    assert_exact(added, sums, steps[0].denominator, wanted)


@dataclass
class OneReplica:
    """A trainer group of one replica in this process, which computes at once and never makes the step."""

    trainer: Any
    options: TrainerOptions
    gradients_of: Callable[[Any, float], Named]
    gradients: list[Named] = field(default_factory=list)
    num_replicas: int = 1
    num_given: int = 0

    def begin(self) -> PendingUpdate:
        return PendingUpdate()

    def add(self, update: PendingUpdate, samples: Sequence[Sample]) -> None:
        update.samples += samples
        update.passes.append(self.trainer.accumulate(samples))

    def give(self, update: PendingUpdate, replica: int, samples: Sequence[Sample]) -> "Done":
        self.add(update, samples)
        return Done()

    def end(self, update: PendingUpdate, **_: Any) -> None:
        update.denominator = step_denominator(update.samples, self.options)
        self.gradients.append(self.gradients_of(self.trainer, update.denominator))
        self.trainer.discard()

    def finish(self, update: PendingUpdate) -> TrainResult:
        return TrainResult(sum(update.passes, GradientSums()), UpdateReport(0.0, 0.0, 1), update.denominator)


class Done:
    """An answer that is there."""

    def future(self) -> "Future[object]":
        answered: Future[object] = Future()
        answered.set_result(None)
        return answered


def streamed(trainers: Any, options: TrainerOptions, events: "queue.SimpleQueue[Event]") -> StepWork:
    """Gradients are computed group by group while the round runs."""
    return StreamedUpdate(trainers, lambda groups: samples_of(groups, options), events, SystemClock(), awake=[0])


def in_updates(*, pipelined: bool) -> Callable[..., StepWork]:
    """Two groups make an update, and no two of them a batch; later updates compare with the engine."""

    def work(trainers: Any, options: TrainerOptions, events: "queue.SimpleQueue[Event]") -> StepWork:
        return StepUpdates(
            trainers,
            HandoverQueue((2,), max_tokens_per_batch=1),
            lambda groups: samples_of(groups, options),
            RECORDS,
            SystemClock(),
            begins_during_rollout=pipelined,
            compares_later_with_engine=options.objective.compares_with_trainer,
        )

    return work


@pytest.mark.parametrize("kind", ["torch", "megatron"])
@pytest.mark.parametrize(
    "work",
    [streamed, in_updates(pipelined=True), in_updates(pipelined=False)],
    ids=["streamed", "pipelined", "after the round"],
)
def test_every_update_of_a_handover_is_exact(work: Callable[..., StepWork], kind: str, models: Models) -> None:
    options = options_of("GSPO", without_kl())
    trainers = start(kind, models.policy, options)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with double_precision(kind == "torch"):
        step = work(trainers, options, events)
        for group in reversed(BATCH.groups):
            step.train_on(group)
            while not events.empty():
                event = events.get()
                assert isinstance(event, GradientsDone)
                step.gradients_done(event)
        trained = step.finish()
    assert sum(map(len, trained.batches)) == len(BATCH.sampled)
    for gradients, update, samples in zip(trainers.gradients, trained.updates, trained.batches, strict=True):
        assert_exact(gradients, update.sums, update.denominator, plain(models, samples, BATCH, options))


def start(kind: str, model: Path, options: TrainerOptions) -> OneReplica:
    """A trainer in double precision."""
    if kind == "torch":
        from longshore_runtime.backends.torch_trainer import TorchTrainer

        with double_models():
            trainer = TorchTrainer(model, options)
        return OneReplica(trainer, options, torch_gradients)
    import torch

    from longshore_runtime.backends.megatron.trainer import MegatronTrainer

    return OneReplica(MegatronTrainer(model, options, dtype=torch.float64), options, megatron_gradients)
