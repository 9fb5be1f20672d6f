"""The file of partial responses in a checkpoint: Arrow, so that tokens are written and read as whole arrays."""

import zlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.trajectories.trajectory import Experts, Run, Trajectory

_RUN: Final = pa.struct([("policy_version", pa.int64()), ("num_tokens", pa.int64())])
_EXPERTS: Final = pa.struct([("rows", pa.large_binary()), ("dtype", pa.string()), ("shape", pa.list_(pa.int64()))])
_SCHEMA: Final = pa.schema(
    [
        ("epoch", pa.int64()),
        ("prompt_index", pa.int64()),
        ("response_index", pa.int64()),
        ("finish_reason", pa.string()),
        ("engine_step", pa.int64()),
        ("text", pa.binary()),
        ("runs", pa.list_(_RUN)),
        ("tokens", pa.large_list(pa.int32())),
        ("log_probs", pa.large_list(pa.float32())),
        ("experts", _EXPERTS),
        ("prompt_experts", _EXPERTS),
    ]
)
_CHECKSUM_BYTES: Final = 4


def write_kept(path: Path, kept: Mapping[ResponseId, Completion]) -> None:
    """Write partial responses, and the checksum of the file at its end."""
    trajectories = [completion.trajectory for completion in kept.values()]
    offsets = np.cumsum([0, *map(len, trajectories)], dtype=np.int64)
    columns = [
        [response.draw.epoch for response in kept],
        [response.draw.index for response in kept],
        [response.index for response in kept],
        [completion.finish_reason.value for completion in kept.values()],
        [completion.engine_step for completion in kept.values()],
        [completion.packed_text for completion in kept.values()],
        [[run._asdict() for run in trajectory.runs] for trajectory in trajectories],
        _lists(offsets, [trajectory.tokens for trajectory in trajectories], np.int32),
        _lists(offsets, [trajectory.log_probs for trajectory in trajectories], np.float32),
        [_packed(trajectory.experts) for trajectory in trajectories],
        [_packed(trajectory.prompt_experts) for trajectory in trajectories],
    ]
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for column, field in zip(columns, _SCHEMA, strict=True)
    ]
    content = pa.BufferOutputStream()
    with pa.ipc.new_file(content, _SCHEMA) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
    file = content.getvalue()
    path.write_bytes(b"".join((file, _checksum(file))))


def read_kept(path: Path) -> dict[ResponseId, Completion]:
    """Read what `write_kept` wrote.

    Raises:
        ValueError: the file is damaged.
        OSError: the storage does not answer.
    """
    content = path.read_bytes()
    file, checksum = memoryview(content)[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
    # Arrow reads tokens from a damaged block as zeros, and fails in many ways for a damaged index.
    if _checksum(file) != checksum:
        raise ValueError("its checksum is another")
    table = pa.ipc.open_file(pa.py_buffer(file)).read_all()
    if table.schema != _SCHEMA:
        raise ValueError("another version of Longshore wrote it")
    small = table.drop_columns(["tokens", "log_probs"])
    tokens, log_probs = _arrays(table["tokens"]), _arrays(table["log_probs"])
    kept: dict[ResponseId, Completion] = {}
    for row, its_tokens, its_log_probs in zip(small.to_pylist(), tokens, log_probs, strict=True):
        response = ResponseId(Draw(row["epoch"], row["prompt_index"]), row["response_index"])
        runs = tuple(Run(**run) for run in row["runs"])
        kept[response] = Completion(
            str(response),
            Trajectory(its_tokens, its_log_probs, runs, _unpacked(row["experts"]), _unpacked(row["prompt_experts"])),
            FinishReason(row["finish_reason"]),
            row["engine_step"],
            row["text"],
        )
    return kept


def _checksum(content: Any) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "big")


def _packed(experts: Experts | None) -> dict[str, Any] | None:
    if experts is None:
        return None
    return {"rows": experts.tobytes(), "dtype": experts.dtype.name, "shape": experts.shape}


def _unpacked(packed: dict[str, Any] | None) -> Experts | None:
    if packed is None:
        return None
    return np.frombuffer(packed["rows"], packed["dtype"]).reshape(packed["shape"])


def _lists(offsets: npt.NDArray[np.int64], arrays: list[npt.NDArray[Any]], dtype: npt.DTypeLike) -> pa.LargeListArray:
    return pa.LargeListArray.from_arrays(offsets, np.concatenate([np.empty(0, dtype), *arrays]))


def _arrays(column: pa.ChunkedArray) -> list[npt.NDArray[Any]]:
    lists = column.combine_chunks()
    values = lists.values.to_numpy()
    offsets = lists.offsets.to_numpy()
    # Copied, because a part would keep the memory of all.
    return [values[first:end].copy() for first, end in pairwise(offsets)]
