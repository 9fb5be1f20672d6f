"""Read and write Hugging Face checkpoint directories without building the model."""

import json
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig

from longshore.checks.model_files import INDEX, TOKENIZER_FILES, weight_files
from longshore.checks.pod_memory import WEIGHT_FILE_BYTES
from longshore_runtime.backends.hf_mapping.entries import EMBEDDING, HEAD, ParameterEntry

ALL_ROWS: Final = slice(None)


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

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; raises ValueError if it does not exist."""
        with self._opened(name) as opened:
            return tuple(opened.get_slice(name).get_shape())

    def read(self, name: str, rows: slice = ALL_ROWS) -> Tensor:
        """Read a tensor, or some rows of it, to the host; raises ValueError if it does not exist."""
        with self._opened(name) as opened:
            tensor: Tensor = opened.get_tensor(name) if rows == ALL_ROWS else opened.get_slice(name)[rows]
            return tensor

    def read_all(self, entry: ParameterEntry) -> list[Tensor]:
        """Read the tensors that make up a parameter of Megatron."""
        return [self.read(name) for name in entry.hf]

    def _opened(self, name: str) -> Any:
        if name not in self._files:
            raise ValueError(f"{self._directory.name} holds no tensor {name!r}")
        return safe_open(self._files[name], framework="pt")


def write_configuration(source: Path, target: Path) -> None:
    """Write what transformers needs beside fp32 weights: configuration and tokenizer of `source`."""
    target.mkdir(parents=True, exist_ok=True)
    config = AutoConfig.from_pretrained(source, local_files_only=True)
    config.dtype = "float32"
    config.save_pretrained(target)
    copy_files(source, target, ("generation_config.json", *TOKENIZER_FILES))


def write_weights(
    target: Path, shapes: Sequence[Mapping[str, Tensor]], number: int, weights: Iterable[tuple[str, Tensor]]
) -> None:
    """Write one part of the weights of a checkpoint, each file once all of its tensors have come.

    Args:
        target: directory of the checkpoint.
        shapes: for each part, tensors without values, in the order in which they come.
        number: which part this is, counted from 0.
        weights: its tensors, of which no more than a file has are kept.
    """
    target.mkdir(parents=True, exist_ok=True)
    splits = [_split(part, one if len(shapes) > 1 else None) for one, part in enumerate(shapes)]
    split = splits[number]
    files: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in weights:
        file = split.tensor_to_filename[name]
        files[file][name] = tensor.contiguous()
        if len(files[file]) == len(split.filename_to_tensors[file]):
            save_file(files.pop(file), target / file, metadata={"format": "pt"})
    assert not files, "all tensors have come"
    if number == 0 and (split.is_sharded or len(splits) > 1):
        index = {
            "metadata": {"total_size": sum(one.metadata["total_size"] for one in splits)},
            "weight_map": {name: file for one in splits for name, file in one.tensor_to_filename.items()},
        }
        (target / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")


def _split(shapes: Mapping[str, Tensor], number: int | None) -> Any:
    """Return which file has which tensor; a part of several has its number in the names."""
    part = "" if number is None else f"-{number:05d}"
    pattern = f"model{part}{{suffix}}.safetensors"
    return split_torch_state_dict_into_shards(dict(shapes), filename_pattern=pattern, max_shard_size=WEIGHT_FILE_BYTES)


def copy_files(source: Path, target: Path, patterns: Collection[str]) -> None:
    """Copy the files of a directory that have such names.

    Raises:
        FileNotFoundError: the directory is gone, so that nobody knows which files it had.
    """
    for path in source.iterdir():
        if path.is_file() and any(fnmatchcase(path.name, pattern) for pattern in patterns):
            shutil.copyfile(path, target / path.name)
