"""Read and write Hugging Face checkpoint directories without building the model."""

import shutil
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig

from longshore.checks.model_files import weight_files
from longshore_runtime.backends.hf_mapping.entries import EMBEDDING, HEAD

TOKENIZER_FILES = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "chat_template*", "*.model",
    "*.tiktoken", "tekken.json", "tokenization_*.py",
)  # fmt: skip


class TensorFiles:
    """Tensors of all safetensors files in a directory, each read on demand."""

    def __init__(self, directory: Path) -> None:
        """Index the files; raises ValueError if there are none."""
        self._directory = directory
        self._files: dict[str, Path] = {}
        for file in weight_files(directory):
            with safe_open(file, framework="pt") as opened:
                self._files.update(dict.fromkeys(opened.keys(), file))
        if not self._files:
            raise ValueError(f"{directory.name} holds no *.safetensors files")

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def holds_two_heads(self) -> bool:
        """Return whether there is an output layer whose values differ from the embedding."""
        embedding, head = (self._files.get(name) for name in (EMBEDDING, HEAD))
        return None not in (embedding, head) and not torch.equal(self.read(EMBEDDING), self.read(HEAD))

    def read(self, name: str) -> Tensor:
        """Read a tensor to the host; raises ValueError if it does not exist."""
        if name not in self._files:
            raise ValueError(f"{self._directory.name} holds no tensor {name!r}")
        with safe_open(self._files[name], framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
            return tensor


def write_model(source: Path, target: Path, weights: Mapping[str, Tensor]) -> None:
    """Write a checkpoint that transformers can open: fp32 weights, with configuration and tokenizer of `source`."""
    target.mkdir(parents=True, exist_ok=True)
    config = AutoConfig.from_pretrained(source, local_files_only=True)
    config.dtype = "float32"
    config.save_pretrained(target)
    copy_files(source, target, ("generation_config.json", *TOKENIZER_FILES))
    save_torch_state_dict({name: weight.contiguous() for name, weight in weights.items()}, target)


def copy_files(source: Path, target: Path, patterns: Collection[str]) -> None:
    """Copy the files of a directory that have such names.

    Raises:
        FileNotFoundError: the directory is gone, so that nobody knows which files it had.
    """
    for path in source.iterdir():
        if path.is_file() and any(fnmatchcase(path.name, pattern) for pattern in patterns):
            shutil.copyfile(path, target / path.name)
