"""What several ranks to a replica add to the torch trainer: see `Trainer`."""

import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions, UpdateReport
from longshore_runtime.backends.world import World
from longshore_runtime.errors import UserError
from longshore_runtime.weights.slices import Weights
from tests.contract.trainers.ranks import Ranks, kept_ranks
from tests.contract.trainers.replicas import (
    OPTIONS,
    SeenMeter,
    figures,
    make_samples,
    options_of,
    own_part,
    with_masks,
    without_kl,
)
from tests.contract.trainers.tiny_models import Family, build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

BATCHES = [with_masks(make_samples(seed=seed)) for seed in range(3)]
WHOLE, HALVES, QUARTERS = (ParallelSizes(fsdp=size) for size in (1, 2, 4))
OFFLOADED = replace(OPTIONS, offload_gradients=True, offload_reference=True)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with tied embeddings of 131 words."""
    return build(tmp_path_factory.mktemp("tied"), Family("qwen2", tied=True))


def start(model: Path, world: World, sizes: ParallelSizes, options: TrainerOptions = OPTIONS) -> Any:
    from longshore_runtime.backends.torch_trainer import TorchTrainer

    return TorchTrainer(model, options, world, sizes)


def one_step(
    world: World,
    model: Path,
    sizes: ParallelSizes,
    options: TrainerOptions = OPTIONS,
    parts: Sequence[Sequence[Sample]] = tuple(BATCHES[:1]),
    recomputes: bool = False,
    naps: bool = False,
) -> tuple[GradientSums, UpdateReport, Weights]:
    """The same parts on every replica but the first of several, which accumulates nothing."""
    trainer = start(model, world, sizes, options)
    if recomputes:
        trainer._model.module.gradient_checkpointing_enable()
    sums = GradientSums()
    for part in parts if world.size == sizes.fsdp or sizes.replica(world.rank) else ():
        sums += trainer.accumulate(own_part(part, world, sizes))
        if naps:
            trainer.sleep()
    report = trainer.update(100.0)
    if naps:
        trainer.sleep()
    return sums, report, dict(trainer.weights())


def assert_same_step(model: Path, sizes: ParallelSizes, **how: Any) -> None:
    """Every rank reports what one that is alone does; the first has the same weights, and the others none."""
    plainly = {name: value for name, value in how.items() if name in ("options", "parts")}
    expected, report, weights = one_step(World(), model, WHOLE, **plainly)
    arguments = (how.get("options", OPTIONS), how.get("parts", BATCHES[:1]))
    flags = (how.get("recomputes", False), how.get("naps", False))
    for rank, (sums, actual, own) in enumerate(kept_ranks(sizes.fsdp).run(one_step, model, sizes, *arguments, *flags)):
        assert actual.grad_norm == pytest.approx(report.grad_norm, rel=1e-5)
        assert figures(sums) == pytest.approx(figures(expected), rel=1e-4, abs=1e-3)
        assert own.keys() == (weights.keys() if rank == 0 else set())
        # Adam's first step is as large where a gradient is almost nothing.
        assert all(np.allclose(own[name], weights[name], rtol=1e-3, atol=1e-4) for name in own)


@pytest.mark.parametrize("sizes", [HALVES, QUARTERS], ids=["2", "4"])
@pytest.mark.parametrize("algorithm", ["GRPO", "GSPO"])
def test_every_rank_reports_the_sums_and_norm_of_one_that_is_alone(
    algorithm: str, sizes: ParallelSizes, tied: Path
) -> None:
    assert_same_step(tied, sizes, options=options_of(algorithm))


@pytest.mark.parametrize("algorithm", ["GRPO", "GSPO"])
def test_ranks_without_samples_take_part(algorithm: str, tied: Path) -> None:
    """Parts of one sample or two for four ranks; some have neither tokens in the loss nor a gradient."""
    parts = [BATCHES[0][:1], BATCHES[0][1:3], *([sample] for sample in BATCHES[0][3:])]
    assert_same_step(tied, QUARTERS, options=without_kl(options_of(algorithm)), parts=parts)


def test_ranks_without_samples_take_part_in_passes_of_the_reference(tied: Path) -> None:
    parts = [BATCHES[0][:1], BATCHES[0][1:3], *([sample] for sample in BATCHES[0][3:6])]
    assert_same_step(tied, QUARTERS, options=OFFLOADED, parts=parts)


def test_layers_that_are_computed_again_for_the_backward_pass(tied: Path) -> None:
    """As they are on GPUs."""
    assert_same_step(tied, HALVES, recomputes=True)


@pytest.mark.parametrize("options", [OPTIONS, OFFLOADED], ids=["on the device", "offloaded"])
def test_naps_between_parts_change_nothing(options: TrainerOptions, tied: Path) -> None:
    assert_same_step(tied, HALVES, options=options, parts=[BATCHES[0][:5], BATCHES[0][5:]], naps=True)


def held(world: World, model: Path, sizes: ParallelSizes) -> tuple[int, int, int]:
    """Numbers that this rank holds: of the weights, of the gradients, of the optimizer's state."""
    trainer = start(model, world, sizes)
    trainer.accumulate(own_part(BATCHES[0], world, sizes))
    gradients = trainer._gradients.flat.numel()
    trainer.update(100.0)
    own = trainer._replica.own
    states = [value for state in trainer._optimizer.state.values() for value in state.values() if value.dim()]
    return sum(own(p).numel() for p in trainer._parameters), gradients, sum(own(value).numel() for value in states)


def test_ranks_have_a_shard_of_everything(tied: Path) -> None:
    size, _, _ = held(World(), tied, WHOLE)
    shards = kept_ranks(4).run(held, tied, QUARTERS)
    assert sum(weights for weights, _, _ in shards) == size
    for weights, gradients, moments in shards:
        assert weights == gradients == moments / 2 == pytest.approx(size / 4, rel=0.05)


def train(
    world: World, model: Path, sizes: ParallelSizes, loaded: Path | None, saved: Path, batches: list[list[Sample]]
) -> None:
    """Load, one step for each batch on the first replica, save asleep."""
    trainer = start(model, world, sizes)
    if loaded:
        trainer.sleep()
        trainer.load(loaded)
        assert trainer._meter.loaded_share == pytest.approx(1.0), "of what this rank holds"
    for batch in batches:
        if sizes.replica(world.rank) == 0:
            trainer.accumulate(own_part(batch, world, sizes))
        trainer.update(100.0)
    trainer.sleep()
    write = ThreadPoolExecutor().submit(trainer.begin_save(saved))
    if sizes.replica(world.rank) == 0:  # What ranks compute meanwhile does not meet what they write.
        trainer.accumulate(own_part(BATCHES[0], world, sizes))
    write.result()


def version_of(directory: Path) -> int:
    version: int = torch.load(directory / "trainer.pt", weights_only=True)["policy_version"]
    return version


def moments_of(directory: Path) -> dict[str, torch.Tensor]:
    """All moments, whole, from the files of all ranks."""
    shards = [load_file(file) for file in sorted((directory / "optimizer").iterdir())]
    return {name: torch.cat([shard[name] for shard in shards if name in shard]) for name in shards[0]}


def test_a_checkpoint_restores_every_bit_under_other_sizes(tied: Path, tmp_path: Path) -> None:
    sharded, whole, again = tmp_path / "sharded", tmp_path / "whole", tmp_path / "again"
    kept_ranks(4).run(train, tied, HALVES, None, sharded, BATCHES[:2])
    train(World(), tied, WHOLE, sharded, whole, [])
    kept_ranks(4).run(train, tied, QUARTERS, whole, again, [])
    expected, moments = load_file(sharded / "model.safetensors"), moments_of(sharded)
    assert len(moments) == 2 * len(expected)
    assert all(values.any() for values in moments.values())
    for directory in (whole, again):
        restored, same = load_file(directory / "model.safetensors"), moments_of(directory)
        assert version_of(sharded) == version_of(directory) == 2
        assert expected.keys() == restored.keys()
        assert all(torch.equal(expected[name], restored[name]) for name in expected)
        assert moments.keys() == same.keys()
        assert all(torch.equal(moments[name], same[name]) for name in moments)


@pytest.mark.parametrize("sizes", [WHOLE, QUARTERS], ids=["1", "4"])
def test_a_checkpoint_without_the_files_of_a_rank_is_refused(sizes: ParallelSizes, tied: Path, tmp_path: Path) -> None:
    """Torch itself would leave those moments at zero."""
    kept_ranks(2).run(train, tied, HALVES, None, tmp_path, BATCHES[:1])
    (tmp_path / "optimizer" / "shard-00001-model-00001-of-00001.safetensors").unlink()
    ranks = Ranks(sizes.fsdp)
    try:
        with pytest.raises(AssertionError, match=r"lacks \d+ values of the moments; restore its files"):
            ranks.run(train, tied, sizes, tmp_path, tmp_path / "again", [])
    finally:
        ranks.stop()


def test_a_checkpoint_before_the_first_update_is_restored(tied: Path, tmp_path: Path) -> None:
    kept_ranks(2).run(train, tied, HALVES, None, tmp_path / "first", [])
    kept_ranks(2).run(train, tied, HALVES, tmp_path / "first", tmp_path / "again", [])
    assert not (tmp_path / "first" / "optimizer").exists()
    expected, restored = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "again"))
    assert all(torch.equal(expected[name], restored[name]) for name in expected)


def test_training_goes_on_under_other_sizes_as_if_nothing_had_happened(tied: Path, tmp_path: Path) -> None:
    train(World(), tied, WHOLE, None, tmp_path / "whole", BATCHES)
    train(World(), tied, WHOLE, None, tmp_path / "begun", BATCHES[:1])
    kept_ranks(2).run(train, tied, HALVES, tmp_path / "begun", tmp_path / "sharded", BATCHES[1:2])
    train(World(), tied, WHOLE, tmp_path / "sharded", tmp_path / "ended", BATCHES[2:])
    expected, actual = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "ended"))
    assert all(torch.allclose(actual[name], expected[name], rtol=1e-3, atol=3e-5) for name in expected)


def without_harm(world: World, model: Path) -> tuple[str, bool]:
    """What an update without finite gradients says, and whether it left all weights as they were."""
    trainer = start(model, world, HALVES)
    before = [tensor.clone() for _, tensor, _ in trainer.tensors()]
    given = own_part(BATCHES[0], world, HALVES)
    trainer.accumulate([replace(sample, advantage=float("inf")) for sample in given])
    with pytest.raises(UserError) as refusal:
        trainer.update(100.0)
    after = [tensor for _, tensor, _ in trainer.tensors()]
    return str(refusal.value), all(map(torch.equal, before, after))


def test_a_gradient_that_is_not_finite_is_refused_before_it_does_harm(tied: Path) -> None:
    for message, unharmed in kept_ranks(2).run(without_harm, tied):
        assert "gradient norm of optimizer step 1 is" in message
        assert unharmed


def test_a_world_that_replicas_do_not_fill_is_refused_without_meeting_anyone(tied: Path) -> None:
    with pytest.raises(ValueError, match=r"trainer\.fsdpSize is 2, which does not divide the trainer's 3 GPUs"):
        start(tied, World(rank=0, size=3, port=1), HALVES)


def shown(world: World, model: Path) -> list[float]:
    from longshore_runtime.backends.torch_trainer import TorchTrainer

    meter = SeenMeter()
    trainer = TorchTrainer(model, OPTIONS, world, HALVES, meter)
    with meter.call(len(own_part(BATCHES[0], world, HALVES))):
        trainer.accumulate(own_part(BATCHES[0], world, HALVES))
        return list(meter.shown)


def test_each_rank_says_how_far_it_is_with_its_own_part_of_the_samples(tied: Path) -> None:
    for values in kept_ranks(2).run(shown, tied):
        assert values == sorted(values)
        assert values[len(values) // 2] < 0.35 * len(BATCHES[0])
        assert values[-1] == pytest.approx(len(BATCHES[0]) / 2)


def most_kept(world: World, model: Path, directory: Path) -> int:
    """Gathered tensors that a rank keeps at a time while a checkpoint is written."""
    trainer = start(model, world, HALVES)
    trainer.accumulate(own_part(BATCHES[0], world, HALVES))
    trainer.update(100.0)
    gather, kept, most = trainer._replica.whole_on_host, [], 0

    def whole(own: torch.Tensor, num_rows: int) -> torch.Tensor:
        nonlocal most
        gathered: torch.Tensor = gather(own, num_rows).clone()
        kept.append(weakref.ref(gathered))
        most = max(most, sum(one() is not None for one in kept))
        return gathered

    trainer._replica.whole_on_host = whole
    trainer.begin_save(directory)()
    return most


def test_only_the_rank_that_writes_keeps_what_is_gathered_for_a_checkpoint(tied: Path, tmp_path: Path) -> None:
    _, other = kept_ranks(2).run(most_kept, tied, tmp_path)
    assert other <= 2


def limits_s(world: World, model: Path) -> list[float]:
    """Time limits of the groups of a rank."""
    from longshore_runtime.backends import torch_sharding

    torch_sharding.TIMEOUT = timedelta(minutes=7)
    trainer = start(model, world, HALVES)
    groups = [trainer._replica._shards, trainer._replica._same_shard]
    return [group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups]


def test_groups_of_ranks_wait_as_long_as_the_world(tied: Path) -> None:
    """Those of a mesh have limits of their own: ten minutes with NCCL."""
    assert kept_ranks(4).run(limits_s, tied) == [[420.0, 420.0]] * 4
