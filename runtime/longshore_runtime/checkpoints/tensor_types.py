"""Types of a model's weights: trainers save float32, and engines sampled with the types that its files had before.

Files are converted part by part, because the pod of the coordinator has less memory than the weights take.
"""

import json
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from longshore.checks.model_files import INDEX, weights_of
from longshore.checks.safetensors import LENGTH_BYTES, StoredTensor, stored_tensors

_TRAINED: Final = "F32"
"""Type that trainers save, in the words of safetensors as all types here."""
_ROUNDED_BYTES: Final = 2
_PART_BYTES: Final = 1 << 24
_ALIGNMENT_BYTES: Final = 8


def _bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    bits = values.view("<u4")
    to_nearest_even = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, to_nearest_even).astype("<u2")


def _float16(values: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):  # As engines do.
        return values.astype("<f2")


_ROUND: Final[Mapping[str, Callable[[npt.NDArray[np.float32]], npt.NDArray[Any]]]] = {
    "BF16": _bfloat16,
    "F16": _float16,
}


def rounded(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """Return values in a type of safetensors; raises ValueError for one that weights in training do not have."""
    _require_float(dtype)
    return _ROUND[dtype](values) if dtype in _ROUND else values


def as_float32(content: bytes, dtype: str) -> npt.NDArray[np.float32]:
    """Undo `rounded`, up to the rounding: return the values in a part of a file."""
    _require_float(dtype)
    if dtype == "BF16":
        return (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(content, "<f2" if dtype == "F16" else "<f4").astype(np.float32)


def _require_float(dtype: str) -> None:
    if dtype not in _IN_CONFIGURATION:
        raise ValueError(f"weights of type {dtype} cannot be merged with an adapter")


_IN_CONFIGURATION: Final = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class TensorTypes:
    """The type of each tensor in the files of a model."""

    by_name: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Path) -> "TensorTypes":
        """Read the headers of a checkpoint whose files have no mistake."""
        return cls({name: tensor.dtype for name, tensor in weights_of(model).items()})

    @property
    def are_those_of_trainers(self) -> bool:
        """Whether nothing is to be converted."""
        return not any(dtype in _ROUND for dtype in self.by_name.values())

    def num_bytes(self, saved: Path) -> int:
        """Return the size of a file that a trainer saved after its conversion."""
        converted = self._converted(stored_tensors(saved))
        return len(_header(converted)) + sum(tensor.num_bytes for tensor in converted.values())

    def convert(self, saved: Path, target: Path) -> None:
        """Convert a file that a trainer saved; values are rounded as engines round them."""
        tensors = stored_tensors(saved)
        converted = self._converted(tensors)
        with saved.open("rb") as read, target.open("wb") as written:
            written.write(_header(converted))
            for name, tensor in converted.items():
                _copy(read, tensors[name], written, tensor.dtype)

    def _converted(self, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Return what the converted file has, in its order: large values first, so that all are aligned.

        Their positions count from the end of the header, whose length depends on them.
        """
        types = {name: self._type(name, tensor) for name, tensor in tensors.items()}
        converted, end = {}, 0
        for name in sorted(tensors, key=lambda name: (types[name] in _ROUND, tensors[name].begin)):
            tensor, begin = tensors[name], end
            is_rounded = types[name] != tensor.dtype
            end += tensor.num_values * _ROUNDED_BYTES if is_rounded else tensor.num_bytes
            converted[name] = replace(tensor, dtype=types[name], begin=begin, end=end)
        return converted

    def _type(self, name: str, tensor: StoredTensor) -> str:
        wanted = self.by_name.get(name, _TRAINED)
        return wanted if tensor.dtype == _TRAINED and wanted in _ROUND else tensor.dtype


def describe_types(model: Path) -> None:
    """Correct what the configuration and the index of a converted model say of its weights."""
    tensors, num_values = weights_of(model).values(), Counter[str]()
    if not tensors:
        return  # The trainer `Fake` saves none.
    for tensor in tensors:
        num_values[tensor.dtype] += tensor.num_values
    ((most, _),) = num_values.most_common(1)

    def set_dtype(config: dict[str, Any]) -> None:
        config["dtype"] = _IN_CONFIGURATION[most]
        for part in config.values():
            if isinstance(part, dict) and "dtype" in part:  # That of the text, in a model that takes images too.
                part["dtype"] = config["dtype"]

    def set_size(index: dict[str, Any]) -> None:
        index.setdefault("metadata", {})["total_size"] = sum(tensor.num_bytes for tensor in tensors)

    _change(model / "config.json", set_dtype)
    if (model / INDEX).exists():
        _change(model / INDEX, set_size)


def _change(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(file.read_bytes())  # Configurations may hold Infinity.
    change(content)
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


def _header(tensors: Mapping[str, StoredTensor]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, tensor in tensors.items():
        offsets = [tensor.begin, tensor.end]
        entries[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
    header = json.dumps(entries).encode()
    header += b" " * (-(LENGTH_BYTES + len(header)) % _ALIGNMENT_BYTES)
    return struct.pack("<Q", len(header)) + header


def _copy(read: BinaryIO, tensor: StoredTensor, written: BinaryIO, dtype: str) -> None:
    read.seek(tensor.begin)
    left = tensor.num_bytes
    while left:
        part = read.read(min(left, _PART_BYTES))
        assert part, "the file is as long as its header says"
        left -= len(part)
        is_rounded = dtype != tensor.dtype
        written.write(_ROUND[dtype](np.frombuffer(part, "<f4")).tobytes() if is_rounded else part)
