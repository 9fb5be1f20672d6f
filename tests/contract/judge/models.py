"""Random models of every family that can be streamed, with layers enough to stream."""

from pathlib import Path
from typing import Final

from longshore_runtime.backends.streamed_lm.plan import MARGIN_BYTES, RING_BUFFERS, DecoderShape, working_bytes
from longshore_runtime.backends.tiny_model import BOS_ID, EOS_ID, PAD_ID, build_tokenizer
from tests.contract.trainers import tiny_models
from tests.contract.trainers.tiny_models import Family

NUM_LAYERS: Final = 7
FAMILIES: Final = ("llama", "qwen2", "qwen3")

_SHAPE = {
    "vocab_size": 128,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2_048,
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
}


def build(directory: Path, family: str, **changes: object) -> Path:
    """Write a checkpoint whose layers all differ, with the built-in tokenizer."""
    heads = {"head_dim": 16} if family == "qwen3" else {}
    tiny_models.build(directory, Family(family, tied=family == "qwen2"), **_SHAPE | heads | changes)
    build_tokenizer().save_pretrained(directory)
    return directory


def reservation(shape: DecoderShape, seq_tokens: int, batch: int, num_resident: int, ring: int = RING_BUFFERS) -> int:
    """Memory in which so many layers stay on the device."""
    working = working_bytes(seq_tokens, batch, shape)
    return shape.base_bytes + working + MARGIN_BYTES + (num_resident + ring) * shape.layer_bytes
