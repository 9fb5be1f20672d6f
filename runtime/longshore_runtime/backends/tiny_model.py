"""The built-in tiny model: a generated Qwen3 with fewer than a million parameters and a character tokenizer."""

import hashlib
import json
import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from longshore.api.model import BUILTIN_CONTEXT_TOKENS

MAX_CONTEXT_TOKENS = BUILTIN_CONTEXT_TOKENS
PAD_ID, BOS_ID, EOS_ID, UNKNOWN_ID = range(4)

_SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
_CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"
# The chat is the bare text: the tiny model is trained on prompts without roles.
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def tiny_config(*, tied: bool = False, **shape: Any) -> Qwen3Config:
    """Return the shape of the model. Two layers suffice to count and compare, and keep an engine step short.

    `tied`: the output layer is the embedding, as in most small models. `shape` are fields that differ.
    """
    fields: dict[str, Any] = {
        "vocab_size": 128,
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 256,
        "max_position_embeddings": MAX_CONTEXT_TOKENS,
        "tie_word_embeddings": tied,
        "initializer_range": 0.02,
        "pad_token_id": PAD_ID,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
    }
    return Qwen3Config(**fields | shape)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with a token per printable ASCII character; everything else is `<unk>`."""
    vocabulary = {token: number for number, token in enumerate((*_SPECIAL_TOKENS, *_CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=MAX_CONTEXT_TOKENS,
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_tiny_model(directory: Path, seed: int, *, tied: bool = False, **shape: Any) -> None:
    """Write the model with random weights and its tokenizer as a Hugging Face checkpoint; equal seeds, equal files."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(tiny_config(tied=tied, **shape))
    model.generation_config = GenerationConfig(pad_token_id=PAD_ID, bos_token_id=BOS_ID, eos_token_id=EOS_ID)
    model.save_pretrained(directory)
    build_tokenizer().save_pretrained(directory)


def fingerprint(seed: int) -> str:
    """Return a name for the result of `build_tiny_model`: equal fingerprints mean equal weights."""
    determinants = {"model": tiny_config().to_dict(), "seed": seed, "torch": torch.__version__}
    return hashlib.sha256(json.dumps(determinants, sort_keys=True, default=str).encode()).hexdigest()[:16]
