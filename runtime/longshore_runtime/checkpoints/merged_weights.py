"""Add an adapter to the weights of its base model, in files.

Files are changed part by part, because the pod of the coordinator has less memory than the weights take.
"""

import json
import re
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from longshore.checks.model_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, weight_files
from longshore.checks.safetensors import StoredTensor, stored_tensors
from longshore_runtime.checkpoints.tensor_types import as_float32, rounded

_MATRIX: Final = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_PART_VALUES: Final = 1 << 22

Matrix = npt.NDArray[np.float32]


def merge(model: Path, adapter: Path) -> None:
    """Add B · A · alpha / rank to the weights of a model that have such matrices; values keep their types.

    Args:
        model: directory of Hugging Face files, which are changed in place.
        adapter: directory of PEFT's files.

    Raises:
        ValueError: the model lacks a weight that has matrices.
    """
    matrices = _matrices(adapter)
    for file in weight_files(model):
        tensors = stored_tensors(file)
        with file.open("r+b") as opened:
            for name in tensors.keys() & matrices.keys():
                _add(opened, tensors[name], matrices.pop(name))
    if matrices:
        raise ValueError(f"{model} lacks {len(matrices)} weights that the adapter changes, first {min(matrices)!r}")


def _matrices(adapter: Path) -> dict[str, tuple[Matrix, Matrix]]:
    """Return A and scaled B by the name of the weights that they change."""
    config = json.loads((adapter / ADAPTER_CONFIG).read_bytes())
    scale = np.float32(config["lora_alpha"] / config["r"])
    file = adapter / ADAPTER_WEIGHTS
    found: dict[str, dict[str, Matrix]] = {}
    with file.open("rb") as opened:
        for name, tensor in stored_tensors(file).items():
            match = _MATRIX.fullmatch(name)
            assert match is not None, "trainers write the names of PEFT"
            found.setdefault(f"{match[1]}.weight", {})[match[2]] = _rows(opened, tensor, 0, tensor.shape[0])
    return {name: (pair["A"], pair["B"] * scale) for name, pair in found.items()}


def _add(file: BinaryIO, tensor: StoredTensor, matrices: tuple[Matrix, Matrix]) -> None:
    a, b = matrices
    num_rows, num_columns = tensor.shape
    step = max(1, _PART_VALUES // num_columns)
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        values = _rows(file, tensor, start, stop) + b[start:stop] @ a
        file.seek(_offset(tensor, start))
        file.write(rounded(values, tensor.dtype).tobytes())


def _rows(file: BinaryIO, tensor: StoredTensor, start: int, stop: int) -> Matrix:
    file.seek(_offset(tensor, start))
    content = file.read(_offset(tensor, stop) - _offset(tensor, start))
    return as_float32(content, tensor.dtype).reshape(stop - start, -1)


def _offset(tensor: StoredTensor, row: int) -> int:
    return tensor.begin + (tensor.end - tensor.begin) // tensor.shape[0] * row
