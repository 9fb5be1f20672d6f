"""The final model: complete or absent, without trainer state, in the types that the model's files had before."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from longshore.api.training import TrainerBackend
from longshore.checks.model_files import INDEX, weights_of
from longshore.checks.safetensors import stored_tensors
from longshore_runtime.checkpoints.model_export import ModelExport
from longshore_runtime.checkpoints.store import Checkpoint, CheckpointStore
from longshore_runtime.checkpoints.tensor_types import TensorTypes
from longshore_runtime.trainer.saved_by import sign
from tests.checkpoints import write_checkpoint

RANDOM = np.random.default_rng(5)
WEIGHTS = {
    "a.bias": RANDOM.normal(size=5).astype(np.float32),
    "a.weight": RANDOM.normal(size=(3, 5)).astype(np.float32),
    "router.bias": RANDOM.normal(size=3).astype(np.float32),
    "steps": np.array([1, 2, 3]),
}
HALF = TensorTypes({"a.bias": "F16", "a.weight": "F16", "router.bias": "F32", "steps": "F16"})


def checkpoint_of(directory: Path, *shards: dict[str, Any]) -> Checkpoint:
    """As the Torch trainer saves it."""

    def save(trainer: Path) -> None:
        places = {}
        for number, shard in enumerate(shards, start=1):
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else "model.safetensors"
            save_file(shard, trainer / name)
            places |= dict.fromkeys(shard, name)
        if len(shards) > 1:
            (trainer / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
        (trainer / "config.json").write_text(json.dumps(CONFIG))
        (trainer / "optimizer.pt").write_bytes(b"moments")
        (trainer / "optimizer" / "exp_avg").mkdir(parents=True)
        (trainer / "optimizer" / "exp_avg" / "moment.safetensors").write_bytes(b"moment")
        sign(trainer, TrainerBackend.TORCH)

    return write_checkpoint(CheckpointStore(directory / "checkpoints", keep=1), 1, {}, {}, save)


CONFIG = {
    "dtype": "float32",
    "text_config": {"dtype": "float32", "limit": float("inf")},
    "vision_config": {"size": 3},
    "name": "ü",
}


@pytest.mark.parametrize("types", [TensorTypes(), HALF])
def test_the_final_model_has_weights_and_no_trainer_state(types: TensorTypes, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, WEIGHTS)
    for _ in range(2):
        ModelExport(types=types).write(checkpoint, tmp_path / "model")
        assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]


def test_weights_of_a_model_in_float32_are_copied_bit_by_bit(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, WEIGHTS)
    ModelExport(types=TensorTypes.of(checkpoint.model)).write(checkpoint, tmp_path / "model")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "model" / name).read_bytes() == (checkpoint.model / name).read_bytes()


def test_each_weight_has_the_type_that_it_had_before_the_training(tmp_path: Path) -> None:
    ModelExport(types=HALF).write(checkpoint_of(tmp_path, WEIGHTS), tmp_path / "model")
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert {name: values.dtype.name for name, values in found.items()} == {
        "a.bias": "float16",
        "a.weight": "float16",
        "router.bias": "float32",
        "steps": "int64",
    }
    for name, values in found.items():
        np.testing.assert_array_equal(values, WEIGHTS[name].astype(values.dtype))


def test_a_weight_that_the_files_did_not_have_stays_as_it_was_trained(tmp_path: Path) -> None:
    ModelExport(types=TensorTypes({"a.weight": "F16"})).write(checkpoint_of(tmp_path, WEIGHTS), tmp_path / "model")
    assert load_file(tmp_path / "model" / "model.safetensors")["a.bias"].dtype == np.float32


def test_values_of_a_file_are_aligned_whatever_their_types(tmp_path: Path) -> None:
    ModelExport(types=HALF).write(checkpoint_of(tmp_path, WEIGHTS), tmp_path / "model")
    sizes = {"I64": 8, "F32": 4, "F16": 2}
    tensors = stored_tensors(tmp_path / "model" / "model.safetensors")
    assert all(tensor.begin % sizes[tensor.dtype] == 0 for tensor in tensors.values())


def test_the_configuration_names_the_type_of_most_values(tmp_path: Path) -> None:
    ModelExport(types=HALF).write(checkpoint_of(tmp_path, WEIGHTS), tmp_path / "model")
    text = {"dtype": "float16", "limit": float("inf")}
    wanted = {**CONFIG, "dtype": "float16", "text_config": text}
    assert json.loads((tmp_path / "model" / "config.json").read_bytes()) == wanted


@pytest.mark.parametrize("types", [TensorTypes(), HALF])
def test_a_model_that_a_server_has_open_on_nfs_is_replaced(
    types: TensorTypes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are open stay in their directory under another name until they are closed."""
    checkpoint, export = checkpoint_of(tmp_path, WEIGHTS), ModelExport(types=types)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "open").touch()
    with monkeypatch.context() as patched:
        patched.setattr("longshore_runtime.checkpoints.model_export.shutil.rmtree", lambda *_, **__: None)
        export.write(checkpoint, tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]
    export.write(checkpoint, tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "model"], "the old one is closed"


def test_a_trainer_without_weights_has_nothing_to_convert(tmp_path: Path) -> None:
    """As the one of the backend Fake, on a real model."""

    def save(trainer: Path) -> None:
        (trainer / "trainer.json").write_text("{}")

    checkpoint = write_checkpoint(CheckpointStore(tmp_path / "checkpoints", keep=1), 1, {}, {}, save)
    ModelExport(types=HALF).write(checkpoint, tmp_path / "model")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["trainer.json"]


def test_shards_stay_and_their_index_tells_the_new_size(tmp_path: Path) -> None:
    first, second = {"a.weight": WEIGHTS["a.weight"]}, {"a.bias": WEIGHTS["a.bias"]}
    checkpoint = checkpoint_of(tmp_path, first, second)
    ModelExport(types=HALF).write(checkpoint, tmp_path / "model")
    index, before = (json.loads((one / INDEX).read_bytes()) for one in (tmp_path / "model", checkpoint.model))
    assert index == {"metadata": {"total_size": 40}, "weight_map": before["weight_map"]}
    assert {tensor.dtype for tensor in weights_of(tmp_path / "model").values()} == {"F16"}


def test_a_tensor_that_is_larger_than_the_memory_for_a_part_is_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longshore_runtime.checkpoints.tensor_types._PART_BYTES", 8)
    test_each_weight_has_the_type_that_it_had_before_the_training(tmp_path)


@pytest.mark.parametrize("types", [TensorTypes(), HALF])
def test_of_the_copy_of_a_model_the_bytes_are_counted_that_it_will_have(
    types: TensorTypes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, target = checkpoint_of(tmp_path, WEIGHTS), tmp_path / "final"
    export, seen = ModelExport(types=types), []
    monkeypatch.setattr(
        "longshore_runtime.checkpoints.model_export.sync_tree",
        lambda _: seen.append(export.progress(checkpoint, target)),
    )
    none, total = export.progress(checkpoint, target)
    export.write(checkpoint, target)
    described = (target / "config.json").stat().st_size - (checkpoint.model / "config.json").stat().st_size
    assert (none, seen) == (0, [(total + described, total)])
