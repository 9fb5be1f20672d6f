"""Whether a safetensors file is whole, from its header and its size: a cut copy is found without reading the weights.

Format: 8 bytes with the length of the header (little endian), the header as JSON, the tensors. Source: the safetensors
documentation, "Format".
"""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

LENGTH_BYTES: Final = 8
"""Size of the number before the header, which is the length of the header."""
_MAX_HEADER_BYTES: Final = 100_000_000
"""The limit of the safetensors library."""
_LFS_POINTER: Final = b"version https://git-lfs"


class DamagedFile(ValueError):
    """The file is not whole: what is wrong with it, as the end of a sentence that begins with its name."""


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor is in its file, and how its values are written."""

    dtype: str
    """Data type by its name in the format, such as F32 or BF16."""
    shape: tuple[int, ...]
    begin: int
    """Position of its first byte in the file."""
    end: int
    """Position after its last byte."""

    @property
    def num_values(self) -> int:
        """Number of values of the whole tensor."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor in the file."""
        return self.end - self.begin


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors in a file whose size is what its header promises, by name.

    Raises:
        DamagedFile: it is cut off, or no safetensors file.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(max(LENGTH_BYTES, len(_LFS_POINTER)))
        if start == _LFS_POINTER:
            raise DamagedFile("is a pointer of Git LFS instead of weights; run `git lfs pull` and copy it again")
        if len(start) < LENGTH_BYTES:
            raise DamagedFile(f"is cut off: it has {size} bytes; copy it again")
        (length,) = struct.unpack("<Q", start[:LENGTH_BYTES])
        if length > _MAX_HEADER_BYTES:
            raise DamagedFile("is no safetensors file: it has no header; copy it again")
        file.seek(LENGTH_BYTES)
        header = file.read(length)
    if len(header) < length:
        raise DamagedFile(f"is cut off within its header: it has {size:,} bytes; copy it again")
    begin = LENGTH_BYTES + length
    tensors = {name: _stored_tensor(entry, begin) for name, entry in _tensors(header).items()}
    promised = max((tensor.end for tensor in tensors.values()), default=begin)
    if size < promised:
        raise DamagedFile(f"is cut off: it has {size:,} bytes of {promised:,}; copy it again")
    if size > promised:
        raise DamagedFile(f"is damaged: it has {size:,} bytes instead of {promised:,}; copy it again")
    return tensors


def _tensors(header: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise DamagedFile("is no safetensors file: its header is no JSON; copy it again") from error
    if not isinstance(entries, dict):
        raise DamagedFile("is no safetensors file: its header is no JSON object; copy it again")
    return {name: entry for name, entry in entries.items() if name != "__metadata__"}


def _stored_tensor(entry: Any, begin: int) -> StoredTensor:
    """Return the tensor of an entry of the header; `begin` is where the tensors begin in the file."""
    try:
        first, end = entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise DamagedFile("is damaged: its header does not say where its tensors are; copy it again") from error
    if not isinstance(first, int) or not isinstance(end, int):
        raise DamagedFile("is damaged: its header does not say where its tensors are; copy it again")
    shape = entry.get("shape")
    if not isinstance(shape, list) or not all(isinstance(length, int) for length in shape):
        raise DamagedFile("is damaged: its header does not say how large its tensors are; copy it again")
    return StoredTensor(str(entry.get("dtype")), tuple(shape), begin + first, begin + end)
