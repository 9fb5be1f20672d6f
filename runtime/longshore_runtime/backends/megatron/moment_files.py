"""Moments of AdamW in checkpoints of the Megatron trainer.

Each rank writes the parts that it owns, as they lie in the flattened parameters of its tensor-parallel rank. Reading
puts together one parameter at a time, whatever the sizes of the world that wrote it were.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from longshore.checks.pod_memory import moment_file_bytes
from longshore_runtime.backends.devices import META
from longshore_runtime.backends.hf_mapping.entries import ParameterEntry
from longshore_runtime.backends.hf_mapping.files import TensorFiles

_SIZE: Final = "tensor_parallel_size"


@dataclass(frozen=True)
class Writer:
    """A rank that writes."""

    rank: int
    tensor_rank: int
    tensor_size: int


Part = tuple[ParameterEntry, int, Tensor]
"""A parameter, the place of some values in its flattened shard on a tensor-parallel rank, and these values."""


def write_moment(directory: Path, parts_of: Iterable[Part], writer: Writer) -> None:
    """Write what a rank owns of one moment to files of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    parts = {f"{_key(entry)}|{writer.tensor_rank}|{first}": values for entry, first, values in parts_of}
    file_bytes = moment_file_bytes(sum(values.nbytes for values in parts.values()))
    files, filled = defaultdict[int, dict[str, Tensor]](dict), 0
    for key, values in parts.items():
        files[filled // file_bytes][key] = values
        filled += values.nbytes
    for number, tensors in files.items():
        save_file(tensors, directory / f"{writer.rank:05d}-{number:02d}.safetensors", {_SIZE: str(writer.tensor_size)})


class MomentFiles:
    """One moment, written by any number of ranks."""

    def __init__(self, directory: Path) -> None:
        """Index the files; raises ValueError if there are none that tell how they were cut."""
        self._directory = directory
        self._parts: defaultdict[str, list[tuple[int, int, str, Path]]] = defaultdict(list)
        self._tensor_size = 0
        for path in sorted(directory.glob("*.safetensors")):
            with safe_open(path, framework="pt") as opened:
                size, keys = (opened.metadata() or {}).get(_SIZE), opened.keys()
            if size is None:
                raise ValueError(f"{path} does not tell its {_SIZE}; restore it")
            self._tensor_size = int(size)
            for key in keys:
                names, tensor_rank, first = key.split("|")
                self._parts[names].append((int(tensor_rank), int(first), key, path))
        if not self._parts:
            raise ValueError(f"{directory} holds no *.safetensors files; restore them")

    def read(self, weights: TensorFiles, entry: ParameterEntry) -> list[Tensor]:
        """Return the moment of the Hugging Face tensors of a parameter; `weights` have their shapes.

        Raises:
            ValueError: the files lack values.
        """
        empty = [torch.empty(weights.shape(name), device=META) for name in entry.hf]
        shards = entry.layout.shards(empty, self._tensor_size)
        return entry.layout.whole([self._shard(entry, rank, shard.shape) for rank, shard in enumerate(shards)])

    def _shard(self, entry: ParameterEntry, tensor_rank: int, shape: torch.Size) -> Tensor:
        parts = [values for _, values in sorted(self._parts_of(entry, tensor_rank), key=lambda part: part[0])]
        if (missing := shape.numel() - sum(len(values) for values in parts)) != 0:
            raise ValueError(f"{self._directory} lacks {missing} values of {_key(entry)}; restore its files")
        return torch.cat(parts).view(shape)

    def _parts_of(self, entry: ParameterEntry, tensor_rank: int) -> Iterator[tuple[int, Tensor]]:
        for rank, first, key, path in self._parts[_key(entry)]:
            if rank == tensor_rank:
                with safe_open(path, framework="pt") as opened:
                    reader: Any = opened
                    yield first, reader.get_tensor(key)


def _key(entry: ParameterEntry) -> str:
    return "+".join(entry.hf)
