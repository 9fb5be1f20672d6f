"""What the jobs of `test_rewards` read: rows of three domains, a judge's model, and rewards of a user."""

import json
from pathlib import Path
from typing import Any, Final

import torch
from transformers import GenerationConfig, Qwen3ForCausalLM

from longshore_runtime.backends.tiny_model import BOS_ID, EOS_ID, PAD_ID, build_tokenizer, tiny_config

Row = dict[str, Any]

PASSED_BY_AN_EMPTY_PROGRAM: Final = [{"stdin": "", "stdout": ""}, {"stdin": "ignored", "stdout": "\n"}]

USER_REWARDS: Final = '''
"""What a user's reward may do wrong."""


def fails(prompt: str, response: str, answer: str) -> float:
    raise KeyError("level")


def is_undefined_for_some(prompt: str, response: str, answer: str) -> float:
    return float("nan") if answer == "undefined" else len(response) / 100
'''


def mixed_rows(num_rows: int) -> list[Row]:
    """A third each of mathematics, programs and taste."""
    kinds = (
        lambda number: {"domain": "algebra", "prompt": f"{number} - {number}?", "answer": "#### 0"},
        lambda number: {
            "domain": "code", "prompt": f"print {number}", "answer": "", "tests": PASSED_BY_AN_EMPTY_PROGRAM
        },
        lambda number: {"domain": "taste", "prompt": f"verse {number}", "answer": "a verse"},
    )  # fmt: skip
    return [kinds[number % 3](number) for number in range(num_rows)]


def write_rows(path: Path, rows: list[Row]) -> None:
    """As JSONL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_judge(directory: Path) -> None:
    """Write a judge that answers with a digit that depends on the last character of its question.

    It answers with nothing where that character is a digit itself. Its layers add nothing, its embedding tells
    characters apart, and its output layer maps a character to the next.
    """
    tokenizer = build_tokenizer()
    digits = tokenizer.convert_tokens_to_ids(list("0123456789"))
    model = Qwen3ForCausalLM(tiny_config())
    size = model.config.vocab_size
    assert size == model.config.hidden_size, "a dimension for every character"
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight.zero_()
        for last in range(size):
            model.lm_head.weight[EOS_ID if last in digits else digits[last % 10], last] = 1.0
    model.generation_config = GenerationConfig(pad_token_id=PAD_ID, bos_token_id=BOS_ID, eos_token_id=EOS_ID)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
