"""Layers that torch.compile compiles, against the same layers as they are."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from longshore.api.training import Recompute, TrainerDtype
from longshore_runtime.backends.parallel_sizes import ParallelSizes
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.trainer_protocol import Sample, TrainerOptions
from longshore_runtime.backends.world import World
from tests.contract.trainers.plans import apart
from tests.contract.trainers.ranks import kept_ranks
from tests.contract.trainers.replicas import LORA, OPTIONS, make_samples, own_part, without_kl
from tests.contract.trainers.tiny_models import MIXTURES, Family, build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

ALONE, HALVES = ParallelSizes(), ParallelSizes(fsdp=2)
SPREAD = ParallelSizes(fsdp=2, spreads_experts=True)
DENSE = Family("qwen3", tied=True)
TRAINED = [sample for sample in make_samples() if sample.advantage]
"""Samples that all have a gradient: passes without one are compiled apart, which takes as long again."""
OTHERS = [sample for sample in make_samples(20, seed=1) if sample.advantage]


def gradients(
    world: World,
    model: Path,
    options: TrainerOptions,
    sizes: ParallelSizes,
    first: Sequence[Sample],
    others: Sequence[Sample],
) -> dict[str, np.ndarray]:
    """What a replica of all ranks accumulates; of the others, nothing may be compiled."""
    trainer = TorchTrainer(model, options, world, sizes)
    trainer.accumulate(own_part(first, world, sizes))
    with torch.compiler.set_stance("fail_on_recompile"):
        trainer.accumulate(own_part(others, world, sizes))
    trainer._accumulation.collect()
    whole = [trainer._replica.whole(one.grad) for one in trainer._parameters if one.grad is not None]
    # As one, because those of half of an adapter are zero at first.
    return {"all": torch.cat([gradient.float().flatten() for gradient in whole]).numpy()}


@pytest.mark.parametrize(
    ("family", "options", "sizes", "tolerance"),
    [
        pytest.param(DENSE, without_kl(), ALONE, 1e-5, marks=pytest.mark.soak),
        pytest.param(DENSE, replace(without_kl(), recompute=Recompute.FULL), ALONE, 1e-5, marks=pytest.mark.soak),
        pytest.param(DENSE, replace(OPTIONS, lora=LORA), ALONE, 1e-5, marks=pytest.mark.soak),
        pytest.param(DENSE, without_kl(), HALVES, 1e-5, marks=pytest.mark.soak),
        pytest.param(DENSE, replace(without_kl(), dtype=TrainerDtype.BFLOAT16), ALONE, 0.03, marks=pytest.mark.soak),
        pytest.param(Family("gemma3", tied=True), without_kl(), ALONE, 1e-5, marks=pytest.mark.soak),
        pytest.param(MIXTURES[0], without_kl(), ALONE, 2e-5, marks=pytest.mark.soak),
        pytest.param(MIXTURES[0], without_kl(), SPREAD, 2e-5, marks=pytest.mark.soak),
    ],
    ids=["packed", "recomputed", "adapter", "shards", "bfloat16", "windows", "experts", "spread experts"],
)
def test_compiled_layers_have_the_gradients_of_others_for_every_length(
    family: Family, options: TrainerOptions, sizes: ParallelSizes, tolerance: float, tmp_path: Path
) -> None:
    model = build(tmp_path, family, num_experts=8)
    found, expected = (
        kept_ranks(sizes.fsdp).run(gradients, model, one, sizes, TRAINED, OTHERS)[0]
        if sizes.fsdp > 1
        else gradients(World(), model, one, sizes, TRAINED, OTHERS)
        for one in (replace(options, torch_compile=True), options)
    )
    assert apart(found, expected) < tolerance


def test_graphs_of_layers_have_their_gradients_for_every_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same without code in C++, which takes a minute to compile."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model = build(tmp_path, DENSE)
    found, expected = (
        gradients(World(), model, replace(without_kl(), torch_compile=one), ALONE, TRAINED, OTHERS)
        for one in (True, False)
    )
    assert apart(found, expected) < 1e-5


def test_a_trainer_without_a_compiler_names_the_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"^trainer\.torchCompile: the image has no C\+\+ compiler"):
        TorchTrainer(build(tmp_path, DENSE), replace(without_kl(), torch_compile=True))
