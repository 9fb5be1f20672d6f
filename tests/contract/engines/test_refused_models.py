"""What vLLM refuses is refused once, with its reason, when the engine starts; and known before, from the files."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from longshore.api.rollout import EngineSettings
from longshore.checks.model_files import model_file_mistakes
from longshore.checks.model_limits import CPU_HEAD_SIZES, context_tokens, limit_mistakes
from longshore_runtime.backends.engine_spec import EngineSpec, EngineStartError
from longshore_runtime.backends.engines import create_engine
from longshore_runtime.backends.tiny_model import build_tokenizer, tiny_config
from longshore_runtime.errors import EngineDied
from tests.contract.engines.harness import MAX_CONTEXT_TOKENS

OPTIONS = EngineSettings(enforce_eager=True, kv_cache="4Mi")
ROPES: tuple[dict[str, Any] | None, ...] = (
    None,
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 512},
)  # fmt: skip


def copied(model: Path, target: Path) -> Path:
    shutil.copytree(model, target)
    return target


def test_a_damaged_file_is_named(model: Path, tmp_path: Path) -> None:
    broken = copied(model, tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(EngineStartError, match=r"^model: broken/model\.safetensors cannot be read: "):
        create_engine(EngineSpec(OPTIONS, MAX_CONTEXT_TOKENS), broken)
    assert "model.safetensors is cut off" in model_file_mistakes(broken, "broken")[0]


def test_a_context_beyond_the_models_is_refused_with_both_numbers(model: Path) -> None:
    with pytest.raises(EngineStartError, match=r"max_model_len \(4096\).*max_position_embeddings=2048"):
        create_engine(EngineSpec(OPTIONS, 4096), model)


def test_an_image_for_processors_is_refused_where_there_are_gpus(model: Path) -> None:
    with pytest.raises(EngineStartError, match=r"^image: .* built for the CPU"):
        create_engine(EngineSpec(OPTIONS, MAX_CONTEXT_TOKENS, accelerator=True), model)


def test_a_driver_that_does_not_answer_costs_an_engine_and_not_the_job(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from longshore_runtime.backends import vllm_start

    without = SimpleNamespace(is_cpu=lambda: False, is_unspecified=lambda: True)
    monkeypatch.setattr(vllm_start, "current_platform", without)
    with pytest.raises(EngineDied, match="driver does not answer"):
        create_engine(EngineSpec(OPTIONS, MAX_CONTEXT_TOKENS, accelerator=True), model)


def test_so_does_a_gpu_that_fails_while_an_engine_starts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from longshore_runtime.backends import vllm_start

    def fails(model: Path) -> list[str]:
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nSearch for it")

    monkeypatch.setattr(vllm_start, "import_model_class", fails)
    with pytest.raises(EngineDied, match="a GPU of the engine failed: CUDA error: uncorrectable ECC error"):
        create_engine(EngineSpec(OPTIONS, MAX_CONTEXT_TOKENS), model)


def test_heads_without_a_kernel_are_refused_when_the_engine_starts(tmp_path: Path) -> None:
    config = Qwen3Config(**{**tiny_config().to_dict(), "head_dim": 24})
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(EngineStartError, match=r"vLLM does not start with these options: .*head"):
        create_engine(EngineSpec(OPTIONS, MAX_CONTEXT_TOKENS), tmp_path)
    stored = json.loads((tmp_path / "config.json").read_bytes())
    assert "heads have size 24" in limit_mistakes(stored, OPTIONS, MAX_CONTEXT_TOKENS, has_accelerator=False)[0]


def test_the_head_sizes_that_are_known_are_those_of_vllm() -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert tuple(CPUAttentionBackend.get_supported_head_sizes()) == CPU_HEAD_SIZES


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"] if rope else "none")
def test_the_context_that_is_computed_is_the_one_that_vllm_allows(
    model: Path, tmp_path: Path, rope: dict[str, Any] | None
) -> None:
    from vllm.config import ModelConfig

    stretched = copied(model, tmp_path / "stretched")
    config = json.loads((stretched / "config.json").read_bytes())
    if rope is not None:
        config["rope_parameters"] = {"rope_theta": 10_000.0, **rope}
    (stretched / "config.json").write_text(json.dumps(config))
    assert context_tokens(config) == ModelConfig(model=str(stretched), dtype="float32").max_model_len
