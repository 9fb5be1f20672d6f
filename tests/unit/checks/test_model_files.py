"""A checkpoint that cannot be loaded is known by its files, long before an engine tries."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from longshore.checks.model_files import INDEX, is_weight, model_file_mistakes
from longshore.checks.safetensors import DamagedFile, stored_tensors

WEIGHTS = {"embed.weight": np.ones((8, 4), np.float32), "head.weight": np.ones((4, 8), np.float16)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "qwen3"}')
    (directory / "tokenizer.json").write_text("{}")
    for number, (name, values) in enumerate(WEIGHTS.items(), start=1):
        save_file({name: values}, directory / f"model-{number:05d}-of-00002.safetensors", metadata={"format": "pt"})
    places = {name: f"model-{number:05d}-of-00002.safetensors" for number, name in enumerate(WEIGHTS, start=1)}
    (directory / INDEX).write_text(json.dumps({"weight_map": places}))
    return directory


def cut(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:num_bytes])


def test_a_whole_checkpoint_has_no_mistakes(model: Path) -> None:
    assert model_file_mistakes(model, "models/mine") == []


SECOND = "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda m: (m / "tokenizer.json").unlink(), "model.path: 'models/mine' has no tokenizer (tokenizer.json"),
        (lambda m: (m / "config.json").unlink(), "model.path: 'models/mine' has no config.json"),
        (lambda m: (m / "config.json").write_text('{"a": '), "has a config.json that holds no JSON object"),
        (lambda m: cut(m / SECOND, -1), f"model.path: models/mine/{SECOND} is cut off: it has "),
        (lambda m: cut(m / SECOND, 20), f"model.path: models/mine/{SECOND} is cut off within its header"),
        (lambda m: cut(m / SECOND, 0), f"models/mine/{SECOND} is cut off: it has 0 bytes"),
        (lambda m: (m / SECOND).write_bytes((m / SECOND).read_bytes() + b"!"), f"{SECOND} is damaged: it has "),
        (
            lambda m: (m / SECOND).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n"),
            f"{SECOND} is a pointer of Git LFS instead of weights; run `git lfs pull`",
        ),
        (lambda m: (m / SECOND).write_text("<html>Not found</html>" * 9), f"{SECOND} is no safetensors file"),
        (lambda m: (m / SECOND).unlink(), f"model.path: 'models/mine' lacks {SECOND}; copy the missing files"),
        (lambda m: (m / INDEX).write_text("{}"), f"models/mine/{INDEX} cannot be read; copy it again"),
        (
            lambda m: save_file({"other": WEIGHTS["head.weight"]}, m / SECOND),
            f"{SECOND} lacks head.weight, which {INDEX} promises",
        ),
    ],
)
def test_what_is_wrong_is_reported_with_the_file_and_what_to_do(
    model: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(model)
    (mistake,) = model_file_mistakes(model, "models/mine")
    assert message in mistake
    assert "\n" not in mistake


def test_a_missing_shard_is_missed_without_an_index(model: Path) -> None:
    (model / INDEX).unlink()
    (model / SECOND).unlink()
    assert f"lacks {SECOND}" in model_file_mistakes(model, "models/mine")[0]


def test_weights_in_another_format_are_named(model: Path) -> None:
    for path in [*model.glob("*.safetensors"), model / INDEX]:
        path.unlink()
    (model / "pytorch_model.bin").write_bytes(b"")
    assert "has no safetensors files but pytorch_model.bin" in model_file_mistakes(model, "models/mine")[0]


def test_a_directory_that_is_not_there_is_one_mistake(tmp_path: Path) -> None:
    assert model_file_mistakes(tmp_path / "no", "no") == ["model.path: 'no' does not exist in the storage of the job"]


@pytest.mark.parametrize("size", range(0, 200, 7))
def test_no_cut_of_a_file_goes_unnoticed(tmp_path: Path, size: int) -> None:
    path = tmp_path / "whole.safetensors"
    save_file(WEIGHTS, path)
    found = stored_tensors(path)
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in found.items()} == {
        "embed.weight": ("F32", (8, 4)),
        "head.weight": ("F16", (4, 8)),
    }
    for name, tensor in found.items():
        assert path.read_bytes()[tensor.begin : tensor.end] == WEIGHTS[name].tobytes()
    cut(path, size)
    with pytest.raises(DamagedFile):
        stored_tensors(path)


def test_a_header_that_lies_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    for header in (
        b"[]",
        b'{"a": 1}',
        b'{"a": {"data_offsets": ["x", "y"]}}',
        b'{"a": {"data_offsets": [0, 0]}}',
        b"\xff\xfe",
    ):
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        with pytest.raises(DamagedFile):
            stored_tensors(path)


@pytest.mark.parametrize(
    ("name", "is_read"),
    [
        ("model.layers.1.mlp.down_proj.weight", True),
        ("model.embed_tokens.weight", True),
        ("lm_head.weight", True),
        ("model.layers.2.eh_proj.weight", False),
        ("mtp.fc.weight", False),
        ("model.mtp_layers.0.norm.weight", False),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", False),
    ],
)
def test_a_model_reads_neither_layers_beyond_its_own_nor_old_frequencies(name: str, is_read: bool) -> None:
    assert is_weight(name, num_layers=2) is is_read
    assert is_weight("model.layers.2.eh_proj.weight", num_layers=None), "nothing tells how many it has"
