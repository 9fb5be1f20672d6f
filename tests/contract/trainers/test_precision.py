"""Layers that compute in bfloat16, with weights, sums of gradients and optimizer state in float32."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from longshore.api.training import Recompute, TrainerDtype
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.precision import bfloat16_speedup, compute_dtype
from longshore_runtime.backends.trainer_protocol import TrainerOptions, UpdateReport
from longshore_runtime.backends.world import World
from longshore_runtime.weights.slices import Weights
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.replicas import OPTIONS, Kind, make_samples, own_part, with_masks, without_kl
from tests.contract.trainers.tiny_models import Family, build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SAMPLES = with_masks(make_samples())
NARROW = replace(OPTIONS, dtype=TrainerDtype.BFLOAT16)
ROUNDING = 0.02
"""Relative error of the norm of gradients in bfloat16."""
MISMATCH = 0.02
"""Mean difference of log-probabilities in bfloat16 and float32."""
ALONE = ParallelSizes()
Found = tuple[UpdateReport, float, float, Weights]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with tied embeddings, and norms of queries and keys."""
    return build(tmp_path_factory.mktemp("qwen3"), Family("qwen3", tied=True))


def one_step(world: World, kind: Kind, options: TrainerOptions, sizes: ParallelSizes = ALONE) -> Found:
    """A step of one replica, its mismatch, and what `compare` finds."""
    trainer: Any = kind.start(options, world, sizes)
    own = own_part(SAMPLES, world, sizes)
    sums = trainer.accumulate(own[: len(own) // 2]) + trainer.accumulate(own[len(own) // 2 :])
    difference = trainer.compare(own, 100.0)
    return trainer.update(100.0), sums.entropy / sums.num_loss_tokens, difference, dict(trainer.weights())


@pytest.mark.parametrize(
    ("name", "sizes", "recompute"),
    [
        ("torch", ALONE, None),
        ("torch", ALONE, Recompute.FULL),
        ("torch", ParallelSizes(fsdp=2), Recompute.SELECTIVE),
        ("megatron", ALONE, None),
        ("megatron", ParallelSizes(pipeline=2), None),
    ],
)
def test_steps_in_bfloat16_are_those_in_float32_but_for_rounding(
    name: str, sizes: ParallelSizes, recompute: Recompute | None, model: Path
) -> None:
    kind = Kind(name, model)
    (report, entropy, _, expected), *_ = kept_ranks(1).run(one_step, kind, OPTIONS)
    ranks = max(sizes.fsdp, sizes.pipeline)
    found = kept_ranks(ranks).run(one_step, kind, replace(NARROW, recompute=recompute), sizes)
    for actual, own_entropy, difference, _ in found:
        assert actual.grad_norm != report.grad_norm, "layers round"
        assert actual.grad_norm == pytest.approx(report.grad_norm, rel=ROUNDING)
        assert own_entropy == pytest.approx(entropy, rel=ROUNDING)
        assert difference < ROUNDING, "what is added up in parts is what one pass computes"
    weights = found[0][-1]
    assert weights.keys() == expected.keys()
    assert all(np.allclose(weights[one], expected[one], atol=3 * OPTIONS.learning_rate) for one in weights)


@pytest.mark.parametrize("name", ["torch", "megatron"])
def test_updates_smaller_than_the_resolution_of_bfloat16_are_kept(name: str, model: Path) -> None:
    slow = replace(NARROW, learning_rate=1e-7, weight_decay=0.0)
    (*_, before), (*_, after) = (
        kept_ranks(1).run(one_step, Kind(name, model), replace(slow, learning_rate=rate))[0] for rate in (0.0, 1e-7)
    )
    changed = {name: np.abs(after[name] - before[name]).max() for name in before}
    assert all(0 < change < 2e-7 for change in changed.values()), changed


def log_probs(world: World, model: Path, options: TrainerOptions) -> list[Any]:
    found = Kind("torch", model).start(options, world).log_probs(SAMPLES)
    return [found[index] for index in range(len(SAMPLES))]


def test_log_probabilities_in_bfloat16_are_close_to_those_in_float32(model: Path) -> None:
    plain, narrow = (np.concatenate(kept_ranks(1).run(log_probs, model, one)[0]) for one in (OPTIONS, NARROW))
    assert 1e-4 < np.abs(plain - narrow).mean() < MISMATCH


def saved_and_resumed(world: World, model: Path, directory: Path) -> tuple[Weights, Weights, float, float]:
    """Save in bfloat16, load in float32, and make the same update in both."""
    first: Any = Kind("torch", model).start(without_kl(NARROW), world)
    first.accumulate(SAMPLES)
    first.update(100.0)
    first.sleep()
    first.begin_save(directory)()
    second: Any = Kind("torch", directory).start(without_kl())
    second.load(directory)
    saved, loaded = dict(first.weights()), dict(second.weights())
    for trainer in (first, second):
        trainer.accumulate(SAMPLES)
    return saved, loaded, first.update(100.0).grad_norm, second.update(100.0).grad_norm


def test_a_checkpoint_has_float32_weights_and_fits_either_type(model: Path, tmp_path: Path) -> None:
    saved, loaded, norm, other_norm = kept_ranks(1).run(saved_and_resumed, model, tmp_path)[0]
    assert saved.keys() == loaded.keys()
    assert all(np.array_equal(saved[name], loaded[name]) for name in saved)
    assert other_norm == pytest.approx(norm, rel=ROUNDING)


def test_unset_types_are_bfloat16_on_gpus_and_float32_elsewhere() -> None:
    found = [compute_dtype(OPTIONS, torch.device(name)) for name in ("cuda", "cpu")]
    assert found == [torch.bfloat16, torch.float32]
    assert compute_dtype(replace(OPTIONS, dtype=TrainerDtype.FLOAT32), torch.device("cuda")) is torch.float32


def test_the_race_is_won_where_products_in_bfloat16_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    seconds = {torch.float32: 4.0, torch.bfloat16: 1.0}

    def multiply(left: torch.Tensor, _: torch.Tensor) -> None:
        now_s[0] += seconds[left.dtype]

    monkeypatch.setattr("longshore_runtime.backends.precision.time.process_time", lambda: now_s[0])
    monkeypatch.setattr(torch.nn.functional, "linear", multiply)
    assert bfloat16_speedup(8, 8) == 4.0
