"""Load Hugging Face checkpoints as causal language models, and refuse mistakes that transformers ignores."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def load_pretrained(directory: Path, dtype: torch.dtype) -> Any:
    """Load a model; raises OSError or ValueError for an unusable one, for example one that lacks parameters.

    Transformers itself would give random values to missing parameters.
    """
    model, report = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=dtype,
        local_files_only=True,
        output_loading_info=True,
        experts_implementation="eager",  # The others do not know autocast: they would compute in fp32 on GPUs.
    )
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"its files lack {len(missing)} parameters, first {missing[0]!r}")
    return model


def require_clear_head(model: Any) -> None:
    """Raise ValueError for a model with an output layer of its own whose configuration ties it to the embedding.

    Transformers and engines decide by comparing the values which of the two holds. After rounding to another type, or
    where only one of the two layers is trained, they decide differently.
    """
    if not model.config.get_text_config().tie_word_embeddings:
        return
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is not None and head.weight is not embedding.weight:
        raise ValueError(TWO_HEADS)


TWO_HEADS = (
    "config.json ties the output layer to the embedding, and the files hold an output layer with other values: "
    "set tie_word_embeddings to false in config.json"
)
