"""The final model is as large as the first one, and holds what its engines sampled with."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra.numpy import arrays
from hypothesis.strategies import floats
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from longshore.api.training import TrainerBackend
from longshore.checks.model_files import weights_of
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.backends.trainers import create_trainer
from longshore_runtime.backends.world import World
from longshore_runtime.checkpoints.model_export import ModelExport
from longshore_runtime.checkpoints.store import CheckpointStore
from longshore_runtime.checkpoints.tensor_types import TensorTypes
from tests.contract.trainers.replicas import OPTIONS, make_samples, step
from tests.contract.trainers.tiny_models import MIXTURES, Family, build

SAMPLES = make_samples(seed=0)
DENSE = Family("qwen2", tied=True)


@given(arrays(np.float32, 64, elements=floats(width=32)))
def test_values_are_rounded_as_engines_round_them(
    tmp_path_factory: pytest.TempPathFactory, values: np.ndarray[Any, Any]
) -> None:
    directory = tmp_path_factory.mktemp("rounded")
    trained = {"bfloat16": torch.from_numpy(values), "float16": torch.from_numpy(values.copy())}
    save_file(trained, directory / "trained.safetensors")
    types = TensorTypes({"bfloat16": "BF16", "float16": "F16"})
    types.convert(directory / "trained.safetensors", directory / "final.safetensors")
    for name, found in load_file(directory / "final.safetensors").items():
        wanted = trained[name].to(getattr(torch, name))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("backend", "family"),
    [
        (TrainerBackend.MEGATRON, DENSE),
        (TrainerBackend.TORCH, DENSE),
        *((TrainerBackend.TORCH, family) for family in MIXTURES),
    ],
    ids=str,
)
def test_a_model_in_bfloat16_stays_one(backend: TrainerBackend, family: Family, tmp_path: Path) -> None:
    built = AutoModelForCausalLM.from_pretrained(build(tmp_path / "built", family), dtype=torch.bfloat16)
    first = tmp_path / "first"
    built.save_pretrained(first, max_shard_size="20KB")
    trainer = create_trainer(TrainerSpec(backend, OPTIONS), first, "first", World())
    step(trainer, [SAMPLES])
    checkpoint = CheckpointStore(tmp_path, keep=1).begin(1, {}, {}, trainer.begin_save)()
    ModelExport(types=TensorTypes.of(first)).write(checkpoint, tmp_path / "final")
    stored = ({name: one.dtype for name, one in weights_of(tmp_path / where).items()} for where in ("first", "final"))
    before, after = stored
    assert after == before
    trained = dict(trainer.weights())
    for file in (tmp_path / "final").glob("*.safetensors"):
        for name, values in load_file(file).items():
            assert torch.equal(values, torch.from_numpy(trained.pop(name)).to(values.dtype))
    assert not trained, "every weight is in the final model"
    final = AutoModelForCausalLM.from_pretrained(tmp_path / "final", dtype="auto")
    assert final.dtype == torch.bfloat16
    assert not all(torch.equal(a, b) for a, b in zip(final.parameters(), built.parameters(), strict=True))
