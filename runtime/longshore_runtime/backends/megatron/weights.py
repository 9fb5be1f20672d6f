"""Convert between a rank's parameters and whole tensors by Hugging Face name."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from longshore_runtime.backends.hf_mapping.architecture import Architecture
from longshore_runtime.backends.hf_mapping.entries import ParameterEntry, stage_entries
from longshore_runtime.backends.hf_mapping.layouts import Piece


def own_entries(architecture: Architecture) -> list[ParameterEntry]:
    """Return the parameters of this rank's stage."""
    return stage_entries(architecture, *stage_place())


def shards(architecture: Architecture, read: Callable[[ParameterEntry], list[Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield this rank's part of each parameter of its stage, whose tensors `read` returns, by Megatron name."""
    tensor = parallel_state.get_tensor_model_parallel_group()
    for entry in own_entries(architecture):
        yield entry.megatron, entry.layout.shards(read(entry), tensor.size())[tensor.rank()]


def gather_to_first(
    parts: Iterable[tuple[ParameterEntry, Tensor]], group: dist.ProcessGroup | None
) -> Iterator[tuple[str, Tensor]]:
    """Yield whole tensors, of which the ranks of a group have parts on the host, to its first rank.

    All ranks of the group iterate to the end together, in any thread; None: there is one rank.
    """
    for entry, shard in parts:
        shards = [shard]
        if group is not None:
            own = shard.contiguous()
            shards = [torch.empty_like(own) for _ in range(group.size())] if group.rank() == 0 else []
            dist.gather(own, shards or None, group=group, group_dst=0)
        if shards:
            yield from zip(entry.hf, (one.contiguous() for one in entry.layout.whole(shards)), strict=True)


def gather(
    architecture: Architecture, shard: Callable[[str], Tensor], device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """Yield whole tensors, of which `shard` returns this rank's parts, one after the other on the host.

    All ranks of a replica iterate to the end together; the first alone gets anything, since a copy per rank might not
    fit the host. `device` is that of the parts.
    """
    stage, _ = stage_place()
    first = parallel_state.get_tensor_model_parallel_rank() + parallel_state.get_context_parallel_rank() == 0
    for entry, owner in _entries(architecture):
        tensors = _whole(entry, shard(entry.megatron)) if stage == owner else []
        received = _to_first_stage(tensors, owner, device) if first else []
        if first and stage == 0:
            for name, tensor in zip(entry.hf, received, strict=True):
                yield name, tensor.to("cpu", copy=True)


def gather_everywhere(
    architecture: Architecture, shard: Callable[[str], Tensor], device: torch.device, *, in_pieces: bool
) -> Iterator[tuple[str, Tensor, int | None]]:
    """Yield whole tensors on `device`, for every rank of the replica.

    `in_pieces`: a rank gets its equal part of what tensor parallelism cuts, with the dimension of the cut. Nothing else
    is gathered over tensor-parallel ranks.
    """
    stage, _ = stage_place()
    for entry, owner in _entries(architecture):
        pieces = _pieces(entry, shard(entry.megatron), in_pieces=in_pieces) if stage == owner else []
        for name, (tensor, dim) in zip(entry.hf, _to_all_stages(pieces, owner, device), strict=True):
            yield name, tensor, dim


def _entries(architecture: Architecture) -> Iterator[tuple[ParameterEntry, int]]:
    """Yield every entry, with the stage that owns it."""
    _, num_stages = stage_place()
    for owner in range(num_stages):
        for entry in stage_entries(architecture, owner, num_stages):
            if not entry.duplicate:
                yield entry, owner


def _pieces(entry: ParameterEntry, shard: Tensor, *, in_pieces: bool) -> list[Piece]:
    size = parallel_state.get_tensor_model_parallel_world_size()
    pieces = entry.layout.pieces(shard, size) if in_pieces else None
    if pieces is None:
        return [(tensor, None) for tensor in _whole(entry, shard)]
    return [(tensor.contiguous(), dim) for tensor, dim in pieces]


def _whole(entry: ParameterEntry, shard: Tensor) -> list[Tensor]:
    group = parallel_state.get_tensor_model_parallel_group()
    parts = [torch.empty_like(shard, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, shard.contiguous(), group=group)
    return [tensor.contiguous() for tensor in entry.layout.whole(parts)]


def _to_first_stage(tensors: list[Tensor], owner: int, device: torch.device) -> list[Tensor]:
    """Return the owner's value on the first stage."""
    stage, _ = stage_place()
    if owner == 0 or stage not in (0, owner):
        return tensors
    group = parallel_state.get_pipeline_model_parallel_group()
    if stage == owner:
        first = dist.get_global_rank(group, 0)
        dist.send_object_list([[(tensor.shape, tensor.dtype) for tensor in tensors]], first, group=group)
        for tensor in tensors:
            dist.send(tensor, first, group=group)
        return []
    source, described = dist.get_global_rank(group, owner), list[Any]([None])
    dist.recv_object_list(described, source, group=group)
    received = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in described[0]]
    for tensor in received:
        dist.recv(tensor, source, group=group)
    return received


def _to_all_stages(pieces: list[Piece], owner: int, device: torch.device) -> list[Piece]:
    """Return the owner's value on all stages."""
    stage, num_stages = stage_place()
    if num_stages == 1:
        return pieces
    group = parallel_state.get_pipeline_model_parallel_group()
    source = dist.get_global_rank(group, owner)
    described: list[Any] = [[(tensor.shape, tensor.dtype, dim) for tensor, dim in pieces]]
    dist.broadcast_object_list(described, source, group=group)
    if stage != owner:
        pieces = [(torch.empty(shape, dtype=dtype, device=device), dim) for shape, dtype, dim in described[0]]
    for tensor, _ in pieces:
        dist.broadcast(tensor, source, group=group)
    return pieces


def stage_place() -> tuple[int, int]:
    """Return the number of this rank's stage, and that of all stages."""
    return (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_pipeline_model_parallel_world_size(),
    )
