"""Load Hugging Face checkpoints as causal language models, and refuse mistakes that transformers ignores."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.modeling_utils import LoadStateDictConfig

from longshore.checks.model_files import weights_of
from longshore_runtime.backends.devices import META
from longshore_runtime.backends.experts import EAGER, group_experts
from longshore_runtime.backends.hf_mapping.files import TensorFiles

_ROWS: Final = 1024
"""Number of rows of two tensors that are compared at a time."""


def load_pretrained(directory: Path, dtype: torch.dtype) -> Any:
    """Load a model; raises OSError or ValueError for an unusable one, for example one that lacks parameters.

    Transformers itself would give random values to missing parameters.
    """
    model, report = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=dtype,
        local_files_only=True,
        output_loading_info=True,
        experts_implementation=EAGER,
    )
    _require_all(report["missing_keys"])
    group_experts(model)
    return model


def empty_pretrained(directory: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """Build the model that `load_pretrained` would load, without reading its weights.

    Parameters, and the buffers that files have, are on the meta device; the other buffers are on `device`, with their
    values.
    """
    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    with META:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, experts_implementation=EAGER)
        stored = {name: torch.empty(tensor.shape) for name, tensor in weights_of(directory).items()}
    for copy in _copies_of_tied(model, TensorFiles(directory)):
        del stored[copy]
    # What follows is `from_pretrained`, with tensors that have a shape and no values. Its own `device_map` would read
    # all files, and needs accelerate.
    settings = LoadStateDictConfig(
        device_map={"": META}, dtype=dtype, weight_mapping=get_model_conversion_mapping(model)
    )
    report, _ = model._load_pretrained_model(model, stored, None, settings)
    _require_all(model._finalize_model_loading(model, settings, report).missing_keys)
    _compute_buffers(model, device)
    group_experts(model)
    return model


def _require_all(missing: Collection[str]) -> None:
    if missing:
        raise ValueError(f"its files lack {len(missing)} parameters, first {min(missing)!r}")


def _copies_of_tied(model: Any, files: TensorFiles) -> Iterator[str]:
    """Yield the names of tensors that the files have twice, because the model has one parameter for both."""
    for copy, source in model.all_tied_weights_keys.items():
        if copy in files and source in files:
            if not _are_equal(files, copy, source):
                raise ValueError(TWO_HEADS)
            yield copy


def _are_equal(files: TensorFiles, name: str, other: str) -> bool:
    shapes = {files.shape(one) for one in (name, other)}
    starts = range(0, files.shape(name)[0], _ROWS)
    parts = (slice(start, start + _ROWS) for start in starts)
    return len(shapes) == 1 and all(torch.equal(files.read(name, part), files.read(other, part)) for part in parts)


def _compute_buffers(model: Any, device: torch.device) -> None:
    """Let the layers of a model fill the buffers that no file has, such as frequencies of RoPE."""
    for layer in model.modules():
        layer._is_hf_initialized = False
        for name in layer._non_persistent_buffers_set:
            if isinstance(buffer := layer._buffers[name], Tensor):
                layer._buffers[name] = torch.empty_like(buffer, device=device)
    model.initialize_weights()  # Without effect on the meta device.


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
