"""A mixture of experts in bfloat16, with conversations and an end token of its own, trains as any model does."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from longshore_runtime.backends.tiny_model import BOS_ID, EOS_ID, PAD_ID, build_tokenizer
from tests.contract.trainers.tiny_models import Family, build
from tests.e2e.jobs import Cluster, claim, fake_job, hashed_reward

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


def write_model(directory: Path) -> int:
    """A base model whose end token is not that of its chat template, as Qwen's; returns the template's."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    heads = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    tokens = {"vocab_size": len(tokenizer), "eos_token_id": EOS_ID, "bos_token_id": BOS_ID, "pad_token_id": PAD_ID}
    build(directory, Family("qwen3_moe", tied=False), num_experts=8, **heads, **tokens)
    AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).save_pretrained(directory)
    return int(tokenizer.convert_tokens_to_ids("<|im_end|>"))


@pytest.mark.soak
@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_a_mixture_is_trained_with_experts_that_are_spread_over_two_pods(
    is_compiled: bool, cluster: Cluster, tmp_path: Path
) -> None:
    name = "compiled-mixture" if is_compiled else "mixture"
    inputs = tmp_path / "inputs"
    turn_end = write_model(inputs / "mixture")
    rows = [{"prompt": f"{number} + {number}", "answer": ""} for number in range(40)]
    (inputs / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(claim(name)))
    cluster.longshore("put", name, str(inputs), "inputs")
    reward, coordinator = hashed_reward(tmp_path)
    manifest = fake_job(
        name,
        model={"path": "inputs/mixture", "maxContextTokens": 128},
        data={"path": "inputs/rows.jsonl", "chat": {}, "heldOutPrompts": 4},
        algorithm={"steps": 3, "promptsPerStep": 4, "responsesPerPrompt": 4, "maxResponseTokens": 64, "seed": 3},
        rollout={"strategy": "TailBatching", "engine": {"enforceEager": True}},
        trainer={
            "backend": "Torch",
            "fsdpSize": 2,
            "expertParallel": True,
            "torchCompile": is_compiled,
            "verifyEvery": 1,
        },
        reward=reward,
        coordinator=coordinator,
        workers={"replicas": 2, "gpusPerPod": 1, "gpuResourceName": "longshore.dev/pretend-gpu"},
        storage={"claimName": name},
    )
    job = cluster.apply(manifest)
    assert job.wait_finished()["phase"] == "Succeeded", job.story()
    steps = job.metrics()
    assert all(values["rollout_corr/log_prob_mismatch_max"] < 1e-3 for values in steps)
    assert max(values["trainer/gradient_difference"] for values in steps) < 2e-5
    assert any(values["response_length/clip_ratio"] < 1 for values in steps), (
        "some ended with the turn, or the model's end"
    )
    model = job.output() / "model"
    before, after = (load_file(one / "model.safetensors") for one in (inputs / "mixture", model))
    assert {one.dtype for one in before.values()} == {torch.bfloat16}
    assert {name: one.dtype for name, one in after.items()} == dict.fromkeys(before, torch.float32), "as in the engines"
    assert all((after[name] != before[name]).any() for name in after if ".experts." in name)
    assert json.loads((model / "generation_config.json").read_text())["eos_token_id"] == [EOS_ID, turn_end]
    job.delete()
