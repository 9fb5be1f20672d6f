"""Whether a safetensors file is whole, from its header and its size: a cut copy is found without reading the weights.

Format: 8 bytes with the length of the header (little endian), the header as JSON, the tensors. Source: the safetensors
documentation, "Format".
"""

import json
import math
import struct
from pathlib import Path
from typing import Any, Final

_LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000
"""The limit of the safetensors library."""
_LFS_POINTER: Final = b"version https://git-lfs"


class DamagedFile(ValueError):
    """The file is not whole: what is wrong with it, as the end of a sentence that begins with its name."""


def tensor_sizes(path: Path) -> dict[str, int]:
    """Return the number of values by name of the tensors in a file whose size is what its header promises.

    Raises:
        DamagedFile: it is cut off, or no safetensors file.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(max(_LENGTH_BYTES, len(_LFS_POINTER)))
        if start == _LFS_POINTER:
            raise DamagedFile("is a pointer of Git LFS instead of weights; run `git lfs pull` and copy it again")
        if len(start) < _LENGTH_BYTES:
            raise DamagedFile(f"is cut off: it has {size} bytes; copy it again")
        (length,) = struct.unpack("<Q", start[:_LENGTH_BYTES])
        if length > _MAX_HEADER_BYTES:
            raise DamagedFile("is no safetensors file: it has no header; copy it again")
        file.seek(_LENGTH_BYTES)
        header = file.read(length)
    if len(header) < length:
        raise DamagedFile(f"is cut off within its header: it has {size:,} bytes; copy it again")
    tensors = _tensors(header)
    promised = _LENGTH_BYTES + length + max((_end(entry) for entry in tensors.values()), default=0)
    if size < promised:
        raise DamagedFile(f"is cut off: it has {size:,} bytes of {promised:,}; copy it again")
    if size > promised:
        raise DamagedFile(f"is damaged: it has {size:,} bytes instead of {promised:,}; copy it again")
    return {name: _num_values(entry) for name, entry in tensors.items()}


def _tensors(header: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise DamagedFile("is no safetensors file: its header is no JSON; copy it again") from error
    if not isinstance(entries, dict):
        raise DamagedFile("is no safetensors file: its header is no JSON object; copy it again")
    return {name: entry for name, entry in entries.items() if name != "__metadata__"}


def _num_values(entry: Any) -> int:
    shape = entry.get("shape")
    if not isinstance(shape, list) or not all(isinstance(length, int) for length in shape):
        raise DamagedFile("is damaged: its header does not say how large its tensors are; copy it again")
    return math.prod(shape)


def _end(entry: Any) -> int:
    try:
        _, end = entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise DamagedFile("is damaged: its header does not say where its tensors are; copy it again") from error
    if not isinstance(end, int):
        raise DamagedFile("is damaged: its header does not say where its tensors are; copy it again")
    return end
