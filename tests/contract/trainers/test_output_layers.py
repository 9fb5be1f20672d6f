"""What a configuration says of the output layer and what the files hold: trainers agree, or refuse with a reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from longshore.api.training import TrainerBackend
from longshore_runtime.backends.streamed_lm.model import StreamedLM, StreamOptions
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.backends.trainers import create_trainer
from longshore_runtime.backends.world import World
from longshore_runtime.errors import UserError
from tests.contract.trainers.replicas import OPTIONS
from tests.contract.trainers.tiny_models import FAMILIES, Family, build

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Weights = dict[str, torch.Tensor]


@pytest.fixture(params=[TrainerBackend.TORCH, TrainerBackend.MEGATRON])
def backend(request: pytest.FixtureRequest) -> TrainerBackend:
    """A trainer."""
    backend: TrainerBackend = request.param
    return backend


def build_with(directory: Path, family: Family, change: Callable[[Weights], Any]) -> Path:
    """A model, with other files than its configuration says."""
    build(directory, family)
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def trainer_of(backend: TrainerBackend, model: Path) -> Any:
    return create_trainer(TrainerSpec(backend, OPTIONS), model, "the-model", World())


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.tied], ids=str)
def test_a_copy_of_the_embedding_as_output_layer_is_trained_as_one(
    tmp_path: Path, backend: TrainerBackend, family: Family
) -> None:
    model = build_with(tmp_path, family, lambda weights: weights.update({HEAD: weights[EMBEDDING].clone()}))
    names = {name for name, _ in trainer_of(backend, model).weights()}
    assert EMBEDDING in names
    assert HEAD not in names


def test_an_output_layer_that_the_configuration_denies_is_refused(tmp_path: Path, backend: TrainerBackend) -> None:
    family = Family("qwen2", tied=True)
    model = build_with(tmp_path, family, lambda weights: weights.update({HEAD: 2 * weights[EMBEDDING]}))
    with pytest.raises(UserError, match="set tie_word_embeddings to false"):
        trainer_of(backend, model)


def test_an_output_layer_that_is_missing_is_refused(tmp_path: Path, backend: TrainerBackend) -> None:
    """Transformers would give it random values."""
    model = build_with(tmp_path, Family("qwen2", tied=False), lambda weights: weights.pop(HEAD))
    with pytest.raises(UserError, match=r"'the-model' cannot be loaded .*lm_head\.weight"):
        trainer_of(backend, model)


def test_a_judge_without_an_output_layer_is_refused(tmp_path: Path) -> None:
    model = build_with(tmp_path, Family("qwen2", tied=False), lambda weights: weights.pop(HEAD))
    with pytest.raises(ValueError, match=r"its files lack 1 parameters, first 'lm_head\.weight'"):
        StreamedLM.load(model, torch.device("cpu"), StreamOptions())
