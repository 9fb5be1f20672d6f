"""What the Megatron trainer adds to `Trainer`: ranks that share a replica."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig

from longshore_runtime.backends.hf_mapping.architecture import read_architecture
from longshore_runtime.backends.hf_mapping.entries import stage_entries
from longshore_runtime.backends.hf_mapping.files import TensorFiles
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.trainer_protocol import UpdateReport
from longshore_runtime.backends.world import World
from longshore_runtime.errors import UserError
from longshore_runtime.weights.slices import Weights
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.replicas import OPTIONS, figures, make_samples, options_of, with_masks
from tests.contract.trainers.test_megatron_mapping import weights_of
from tests.contract.trainers.tiny_models import Family, build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

BATCHES = [with_masks(make_samples(seed=seed)) for seed in range(3)]
TIED = Family("qwen2", tied=True)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with tied embeddings."""
    return build(tmp_path_factory.mktemp("tied"), TIED)


def start(model: Path, world: World | None = None, sizes: ParallelSizes | None = None, **changes: Any) -> Any:
    from longshore_runtime.backends.megatron.trainer import MegatronTrainer

    return MegatronTrainer(model, replace(OPTIONS, **changes), world, sizes)


def one_step(
    world: World, model: Path, sizes: ParallelSizes, algorithm: str
) -> tuple[GradientSums, UpdateReport, Weights]:
    """All samples on every replica but the first, which accumulates nothing."""
    options = options_of(algorithm)
    trainer = start(model, world, sizes, **vars(options))
    idle = world.size > sizes.ranks_per_replica and sizes.replica(world.rank) == 0
    sums = GradientSums() if idle else trainer.accumulate(BATCHES[0])
    return sums, trainer.update(100.0), dict(trainer.weights())


@pytest.mark.parametrize("algorithm", ["GRPO", "GSPO"])
@pytest.mark.parametrize(
    "sizes", [ParallelSizes(tensor=2), ParallelSizes(pipeline=2), ParallelSizes(context=2), ParallelSizes()], ids=str
)
def test_every_rank_reports_the_sums_and_norm_of_one_that_is_alone(
    sizes: ParallelSizes, algorithm: str, tied: Path
) -> None:
    expected, report, _ = one_step(World(), tied, ParallelSizes(), algorithm)
    for rank, (sums, actual, _) in enumerate(kept_ranks(2).run(one_step, tied, sizes, algorithm)):
        assert actual.grad_norm == pytest.approx(report.grad_norm, rel=1e-5)
        if sizes.ranks_per_replica == 2 or rank == 1:
            assert figures(sums) == pytest.approx(figures(expected), rel=1e-4, abs=1e-3)


def train(world: World, model: Path, sizes: ParallelSizes, loaded: Path | None, saved: Path, batches: Any) -> None:
    """Load, one step for each batch, save."""
    trainer = start(model, world, sizes)
    if loaded:
        trainer.load(loaded)
        assert trainer._meter.loaded_share == pytest.approx(1.0), "of what this rank holds"
    for batch in batches:
        trainer.accumulate(batch)
        trainer.update(100.0)
    trainer.begin_save(saved)()


def stored(model: Path, checkpoint: Path) -> dict[str, torch.Tensor]:
    """Weights and moments of a checkpoint."""
    from longshore_runtime.backends.megatron.moment_files import MomentFiles

    files, found = TensorFiles(checkpoint), weights_of(checkpoint)
    architecture = read_architecture(AutoConfig.from_pretrained(model))
    for moment in ("exp_avg", "exp_avg_sq"):
        moments = MomentFiles(checkpoint / "optimizer" / moment)
        for entry in stage_entries(architecture, 0, 1):
            found |= {f"{name} {moment}": one for name, one in zip(entry.hf, moments.read(files, entry), strict=True)}
    return found


@pytest.mark.parametrize(
    ("sizes", "others"),
    [
        (ParallelSizes(tensor=2), ParallelSizes(pipeline=2)),
        (ParallelSizes(pipeline=2), ParallelSizes()),
        (ParallelSizes(), ParallelSizes(tensor=2)),
    ],
    ids=["TP2 to PP2", "PP2 to DP2", "DP2 to TP2"],
)
def test_a_checkpoint_restores_every_bit_under_other_sizes(
    sizes: ParallelSizes, others: ParallelSizes, tied: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    kept_ranks(2).run(train, tied, sizes, None, first, BATCHES[:2])
    kept_ranks(2).run(train, tied, others, first, second, [])
    for rank in range(2):  # Each has written what it owns.
        assert list((first / "optimizer" / "exp_avg").glob(f"{rank:05d}-*.safetensors"))
    one, other = stored(tied, first), stored(tied, second)
    assert one.keys() == other.keys() and len(one) == 3 * len(TensorFiles(first).names)
    assert all(torch.equal(one[name], other[name]) and one[name].any() for name in one)


def test_moments_that_a_lost_file_had_are_missed(tied: Path, tmp_path: Path) -> None:
    kept_ranks(2).run(train, tied, ParallelSizes(), None, tmp_path / "saved", BATCHES[:1])
    (lost,) = (tmp_path / "saved" / "optimizer" / "exp_avg_sq").glob("00001-*")
    lost.unlink()
    with pytest.raises(ValueError, match=r"exp_avg_sq lacks \d+ values of model\..*; restore its files"):
        start(tied).load(tmp_path / "saved")


def test_training_goes_on_under_other_sizes_as_if_nothing_had_happened(tied: Path, tmp_path: Path) -> None:
    train(World(), tied, ParallelSizes(), None, tmp_path / "whole", BATCHES)
    kept_ranks(2).run(train, tied, ParallelSizes(tensor=2), None, tmp_path / "begun", BATCHES[:2])
    kept_ranks(2).run(train, tied, ParallelSizes(pipeline=2), tmp_path / "begun", tmp_path / "ended", BATCHES[2:])
    expected, actual = (weights_of(tmp_path / name) for name in ("whole", "ended"))
    assert all(torch.allclose(actual[name], expected[name], rtol=1e-3, atol=3e-5) for name in expected)
    trainer = start(tied)
    trainer.load(tmp_path / "ended")
    trainer.accumulate(BATCHES[0])
    assert trainer.update(100.0).policy_version == 4


def test_a_gradient_that_is_not_finite_is_refused_before_it_does_harm(tied: Path) -> None:
    trainer = start(tied)
    before = dict(trainer.weights())
    trainer.accumulate([replace(sample, advantage=float("inf")) for sample in BATCHES[0]])
    with pytest.raises(UserError, match=r"^algorithm\.learningRate: the gradient norm of optimizer step 1 is .*lower"):
        trainer.update(100.0)
    after = dict(trainer.weights())
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_model_that_does_not_split_is_refused_without_meeting_anyone(tied: Path) -> None:
    with pytest.raises(
        ValueError, match=r"trainer\.tensorParallelSize: 3 does not divide the model's 8 attention heads"
    ):
        start(tied, World(rank=0, size=3, port=1), ParallelSizes(tensor=3))


def test_a_checkpoint_without_a_needed_tensor_is_refused_by_name(tied: Path, tmp_path: Path) -> None:
    for file in tied.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match=r"holds no \*\.safetensors files"):
        start(tmp_path)
    tensors = load_file(tied / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"holds no tensor 'model\.norm\.weight'"):
        start(tmp_path)


VOCABULARY, HIDDEN = 13, 8


def head_and_inputs() -> tuple[Tensor, Tensor, Tensor]:
    """A head with one row of padding, hidden states, and targets."""
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(VOCABULARY + 1, HIDDEN, generator=generator)
    hidden = torch.randn(25, HIDDEN, generator=generator)
    return head, hidden, torch.randint(0, VOCABULARY, (25,), generator=generator)


def vocab_parallel(world: World, tokens_per_chunk: int) -> list[Tensor]:
    """Log-probabilities, entropies and gradients (hidden states: this rank's part of the sum)."""
    from megatron.core import parallel_state

    from longshore_runtime.backends.megatron import vocab_parallel
    from longshore_runtime.backends.megatron.world import join

    join(world, ParallelSizes(tensor=world.size), torch.device("cpu"))
    head, hidden, targets = head_and_inputs()
    shard = head.chunk(world.size)[world.rank].clone().requires_grad_()
    hidden.requires_grad_()
    with mock.patch.object(vocab_parallel, "logit_chunk_tokens", lambda _: tokens_per_chunk):
        log_probs, entropies = vocab_parallel.vocab_parallel_log_probs(
            hidden,
            lambda part: part @ shard.T,
            targets,
            0.7,
            parallel_state.get_tensor_model_parallel_group(),
            VOCABULARY,
        )
        gradients = torch.autograd.grad(weighted(log_probs, entropies), [hidden, shard])
    return [log_probs.detach(), entropies.detach(), *gradients]


def weighted(log_probs: Tensor, entropies: Tensor) -> Tensor:
    """A loss with another gradient for each token, by its log-probability and its entropy."""
    return (log_probs * torch.arange(25) + entropies * torch.arange(25).flip(0)).sum()


@pytest.mark.parametrize("tokens_per_chunk", [4096, 4])
def test_log_probs_over_a_shared_vocabulary_equal_those_over_a_whole_one(tokens_per_chunk: int) -> None:
    head, hidden, targets = head_and_inputs()
    head.requires_grad_()
    hidden.requires_grad_()
    values = torch.log_softmax(hidden @ head[:VOCABULARY].T / 0.7, -1)
    log_probs = values[torch.arange(25), targets]
    entropies = -(values.exp() * values).sum(-1)
    expected = torch.autograd.grad(weighted(log_probs, entropies), [hidden, head])
    first, second = kept_ranks(2).run(vocab_parallel, tokens_per_chunk)
    for rank in (first, second):
        assert torch.allclose(rank[0], log_probs, atol=1e-6)
        assert torch.allclose(rank[1], entropies, atol=1e-6)
    assert torch.allclose(first[2] + second[2], expected[0], atol=1e-4)
    assert torch.allclose(torch.cat([first[3], second[3]]), expected[1], atol=1e-4)
