"""A checkpoint that cannot be trained is refused with one sentence before anything starts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from longshore.api.model import Model
from longshore.api.rollout import EngineSettings
from longshore.api.training import TrainerBackend, TrainerSettings
from longshore_runtime.data.tokenizer import load_tokenizer
from longshore_runtime.errors import UserError
from longshore_runtime.session.initial_model import check_model
from longshore_runtime.storage import JobStorage

TORCH = TrainerSettings()


@pytest.fixture
def storage(model: Path, tmp_path: Path) -> JobStorage:
    shutil.copytree(model, tmp_path / "models" / "tiny")
    return JobStorage(tmp_path, "out")


def check(storage: JobStorage, trainer: TrainerSettings = TORCH, **model: Any) -> None:
    check_model(Model(path="models/tiny", **model), EngineSettings(), trainer, storage, has_accelerator=False)


def test_what_transformers_writes_is_accepted(storage: JobStorage) -> None:
    check(storage)
    load_tokenizer(storage.resolve("models/tiny"))


def test_a_model_that_does_not_split_as_asked_is_refused_before_engines_start(storage: JobStorage) -> None:
    megatron = TrainerSettings(backend=TrainerBackend.MEGATRON, tensor_parallel_size=3)
    with pytest.raises(UserError, match=r"^trainer.tensorParallelSize: 3 does not divide the model's \d+ attention"):
        check(storage, megatron)
    check(storage, TrainerSettings(backend=TrainerBackend.MEGATRON))


def test_a_model_that_engines_do_not_take_is_reported_by_its_field(storage: JobStorage) -> None:
    path = storage.resolve("models/tiny") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"head_dim": 24}))
    with pytest.raises(UserError, match=r"model\.path: the attention heads have size 24"):
        check(storage)


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (None, "the tokenizer of 'tiny' has no vocabulary"),
        ("{", "has no usable tokenizer"),
        ("{}", "no usable tokenizer"),
    ],
)
def test_a_tokenizer_that_is_none_is_not_taken_for_an_empty_one(
    storage: JobStorage, content: str | None, reported: str
) -> None:
    directory = storage.resolve("models/tiny")
    for path in directory.glob("tokenizer*"):
        path.unlink()
    if content is not None:
        (directory / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=reported):
        load_tokenizer(directory)
