"""What directories of models hold besides weights that are as expected, and what checkpoints keep of it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    GenerationConfig,
    Llama4ForCausalLM,
    Llama4TextConfig,
    OPTConfig,
    OPTForCausalLM,
)

from longshore.api.training import TrainerBackend
from longshore.checks.model_files import num_parameters
from longshore_runtime.backends import file_names
from longshore_runtime.backends.causal_lm import CausalLM
from longshore_runtime.backends.file_names import FileNames
from longshore_runtime.backends.torch_trainer import TorchTrainer
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.backends.trainers import create_trainer
from longshore_runtime.backends.world import World
from longshore_runtime.errors import UserError
from tests.contract.trainers.replicas import OPTIONS, make_samples, step
from tests.contract.trainers.tiny_models import MIXTURES, Family, build

SAMPLES = make_samples(seed=0)


def with_copy(directory: Path) -> Path:
    """The weights again, in the file and with the names of Mistral's own format."""
    build(directory, Family("llama", tied=False))
    weights = load_file(directory / "model.safetensors")
    save_file({f"layers.{name}": value for name, value in weights.items()}, directory / "consolidated.safetensors")
    return directory


def test_a_copy_of_the_weights_in_another_format_is_left_alone(tmp_path: Path) -> None:
    model = with_copy(tmp_path)
    names = {name for name, _ in TorchTrainer(model, OPTIONS).weights()}
    assert names == set(load_file(model / "model.safetensors"))
    assert num_parameters(model) == sum(value.numel() for value in load_file(model / "model.safetensors").values())


def test_a_model_whose_parameters_transformers_renames_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines know the names of the files: no update would ever reach them."""
    build(tmp_path, MIXTURES[0])
    keep = "longshore_runtime.backends.file_names.revert_weight_conversion"
    monkeypatch.setattr(keep, lambda model, tensors: tensors)
    with pytest.raises(
        UserError, match=r"the parameter 'model\.layers\.0\.mlp\.experts\.gate_up_proj' other names than"
    ):
        create_trainer(TrainerSpec(TrainerBackend.TORCH, OPTIONS), tmp_path, "the-model", World())


def test_files_with_tensors_that_nobody_would_train_are_refused_at_the_start(tmp_path: Path) -> None:
    """Engines expect every tensor of the files with each update."""
    build(tmp_path, Family("qwen3", tied=False))
    tensors = load_file(tmp_path / "model.safetensors") | {"model.visual.patch.weight": torch.zeros(2, 2)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"1 tensors that transformers does not load, first 'model\.visual\."):
        create_trainer(TrainerSpec(TrainerBackend.TORCH, OPTIONS), tmp_path, "the-model", World())


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (lambda values: values.flip(0), r"does not write the parameter '.*experts\.0\..*' as it reads it"),
        (None, r"does not read the parameter '.*experts\.gate_up_proj' as it writes it"),
    ],
    ids=["apart", "together"],
)
def test_a_model_that_transformers_converts_with_a_loss_is_refused_at_the_start(
    changed: Callable[[Tensor], Tensor] | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path, MIXTURES[0])
    if changed is None:
        monkeypatch.setattr(FileNames, "together", lambda self, name, files, rows: torch.zeros(3, 64, 32))
    else:
        revert = file_names.revert_weight_conversion
        monkeypatch.setattr(
            file_names,
            "revert_weight_conversion",
            lambda model, tensors: {name: changed(values) for name, values in revert(model, tensors).items()},
        )
    with pytest.raises(UserError, match=sentence):
        create_trainer(TrainerSpec(TrainerBackend.TORCH, OPTIONS), tmp_path, "the-model", World())


@pytest.mark.parametrize(
    "odd", [{"temperature": 0.9, "top_p": 0.6}, {"num_beams": 1, "early_stopping": True}], ids=["sampling", "beams"]
)
def test_generation_settings_that_transformers_does_not_write_are_kept(
    odd: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    """It only warns when it reads them."""
    source = copied(model, tmp_path / "source")
    (source / "generation_config.json").write_text(json.dumps(odd))
    trainer = TorchTrainer(source, OPTIONS)
    step(trainer, [SAMPLES])
    trainer.begin_save(tmp_path / "checkpoint")()
    assert json.loads((tmp_path / "checkpoint" / "generation_config.json").read_text()) == odd
    TorchTrainer(source, OPTIONS).load(tmp_path / "checkpoint")


def copied(model: Path, target: Path) -> Path:
    target.mkdir()
    for file in model.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_a_model_without_settings_of_generation_still_says_where_responses_end(model: Path, tmp_path: Path) -> None:
    source = copied(model, tmp_path / "source")
    (source / "generation_config.json").unlink(missing_ok=True)
    trainer = TorchTrainer(source, OPTIONS)
    trainer.begin_save(tmp_path / "checkpoint")()
    end = json.loads((source / "config.json").read_text())["eos_token_id"]
    assert GenerationConfig.from_pretrained(tmp_path / "checkpoint").eos_token_id == end


def test_a_directory_whose_name_begins_like_a_file_of_a_tokenizer_is_left_alone(model: Path, tmp_path: Path) -> None:
    source = copied(model, tmp_path / "source")
    (source / "tokenizer").mkdir()
    TorchTrainer(source, OPTIONS).begin_save(tmp_path / "checkpoint")()
    assert not (tmp_path / "checkpoint" / "tokenizer").exists()


@pytest.mark.parametrize("backend", [TrainerBackend.MEGATRON, TrainerBackend.TORCH])
def test_no_checkpoint_without_a_tokenizer_is_written_when_the_model_was_deleted(
    backend: TrainerBackend, tmp_path: Path
) -> None:
    source = build(tmp_path / "source", Family("qwen2", tied=True))
    trainer = create_trainer(TrainerSpec(backend, OPTIONS), source, "source", World())
    shutil.rmtree(source)
    with pytest.raises(OSError, match=r"No such file|source"):
        trainer.begin_save(tmp_path / "checkpoint")()


def test_every_file_of_a_tokenizer_is_in_a_checkpoint(model: Path, tmp_path: Path) -> None:
    source = copied(model, tmp_path / "source")
    files = {"added_tokens.json", "tekken.json", "qwen.tiktoken", "tokenization_qwen.py"}
    for name in files:
        (source / name).write_text("{}")
    TorchTrainer(source, OPTIONS).begin_save(tmp_path / "checkpoint")()
    assert files <= {path.name for path in (tmp_path / "checkpoint").iterdir()}


def test_settings_of_the_optimizer_are_those_of_the_job_that_goes_on(model: Path, tmp_path: Path) -> None:
    trainer = TorchTrainer(model, replace(OPTIONS, weight_decay=0.1, adam_beta2=0.95))
    step(trainer, [SAMPLES])
    trainer.begin_save(tmp_path)()
    changed = replace(OPTIONS, weight_decay=0.0, adam_beta1=0.8, adam_beta2=0.999, adam_epsilon=1e-5)
    resumed = TorchTrainer(model, changed)
    resumed.load(tmp_path)
    (group,) = resumed._optimizer.param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.8, 0.999), 1e-5, 0.0)
    assert resumed._optimizer.state, "and the moments are those of the checkpoint"


OPT = OPTForCausalLM, OPTConfig(
    vocab_size=128, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=32,
    max_position_embeddings=64, dropout=0.5, layerdrop=0.5, attention_dropout=0.5,
)  # fmt: skip
FALCON = FalconForCausalLM, FalconConfig(
    vocab_size=128, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, hidden_dropout=0.5,
    attention_dropout=0.5,
)  # fmt: skip


@pytest.mark.parametrize(("kind", "config"), [OPT, FALCON], ids=["OPT", "Falcon"])
def test_dropout_is_off_wherever_a_model_keeps_its_share(kind: Any, config: Any, tmp_path: Path) -> None:
    """As a number of a layer, as OPT; as a module, or in the settings that a layer reads at each pass, as Falcon."""
    kind(config).save_pretrained(tmp_path)
    model = CausalLM(tmp_path, torch.device("cpu"))
    with torch.no_grad():
        first, second = (model.response_tokens(SAMPLES, 1.0).log_probs for _ in range(2))
    assert torch.equal(first, second)
    assert model.module.config.attention_dropout == 0.5, "what is saved with the model stays"


def test_a_model_whose_layers_are_no_model_of_their_own_is_refused_at_the_start(tmp_path: Path) -> None:
    config = Llama4TextConfig(
        vocab_size=128, hidden_size=32, intermediate_size=32, intermediate_size_mlp=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16, num_local_experts=2,
    )  # fmt: skip
    Llama4ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="choose another architecture"):
        create_trainer(TrainerSpec(TrainerBackend.TORCH, OPTIONS), tmp_path, "the-model", World())
