"""Load new weights, or an adapter, into a running vLLM, part by part: runs in its workers, by `collective_rpc`.

vLLM's own `reload_weights` wants all weights in one call, which would ship a whole model through its message queue.
A layer is replaced when all of its parameters have come, in whichever buckets.
"""

from collections.abc import Iterator
from typing import Any

import torch
from vllm.config import set_current_vllm_config

from longshore.api.training import Lora
from longshore_runtime.backends.broadcast import Broadcast
from longshore_runtime.backends.shared_buffer import free_gpu_memory, open_buffer
from longshore_runtime.backends.vllm_lora import AdapterUpdate
from longshore_runtime.backends.vllm_renewal import Renewal
from longshore_runtime.backends.weight_sender import Assembly, read, receive
from longshore_runtime.weights.shared import BroadcastGroup, BucketPart, BufferHandle, SharedBucket
from longshore_runtime.weights.slices import Bucket, Slice


def begin_update(worker: Any, channel: BroadcastGroup | None = None, lora: Lora | None = None, number: int = 0) -> bool:
    """Prepare every layer for new weights; with a `channel`, they come by broadcast.

    With `lora`, they are those of an adapter, which an engine knows by its number. Returns whether all matrices
    that come are held in bfloat16.
    """
    sources = _Sources(worker.device)
    if channel is not None:
        sources.join(channel, worker.rank)
    worker.longshore_sources = sources
    dtypes = {one.dtype for one in worker.model_runner.get_model().parameters() if one.dim() > 1}
    with set_current_vllm_config(worker.vllm_config):
        worker.longshore_update = (
            Renewal(worker.model_runner.get_model(), worker.model_config)
            if lora is None
            else AdapterUpdate(worker, lora, number)
        )
    return lora is None and dtypes == {torch.bfloat16}


def load_arrays(worker: Any, bucket: Bucket) -> None:
    """Load some parameters, given by their names in the checkpoint; a worker takes its share of each.

    A parameter that comes in slices is loaded when it is complete.
    """
    _load(worker, _arrays(worker.longshore_sources.assembly, bucket))


def load_shared(worker: Any, bucket: SharedBucket) -> None:
    """Load from memory shared with a trainer rank; raises ValueError if a checksum differs.

    vLLM keeps what it is given until a layer is complete, and by then the trainer has written the next bucket: `read`
    gives it copies, and has waited for them.
    """
    _load(worker, _shared(worker.longshore_sources, bucket.part(worker.rank), worker.rank))


def finish_update(worker: Any) -> list[str]:
    """Finish the update, and release the trainer's memory; return the names of layers that do not compute with it.

    A layer that lacked parameters holds values of no meaning until the next update.
    """
    with set_current_vllm_config(worker.vllm_config):
        old = worker.longshore_update.finish()
    del worker.longshore_sources, worker.longshore_update
    free_gpu_memory()
    return list(old)


def _arrays(assembly: Assembly, bucket: Bucket) -> Iterator[tuple[str, torch.Tensor]]:
    for name, values in bucket.items():
        # Arrays from the object store are read-only, which torch does not know: it gets copies, one by one.
        if not isinstance(values, Slice):
            yield name, torch.tensor(values)
        elif (whole := assembly.add(name, torch.tensor(values.values), values.shape, values.start)) is not None:
            yield name, whole


def _shared(sources: "_Sources", part: BucketPart, rank: int) -> Iterator[tuple[str, torch.Tensor]]:
    for slot, values in read(part, sources.buffer(part)):
        whole = sources.assembly.add(slot.name, values, slot.checksum.shape, slot.checksum.start)
        if whole is not None:
            yield slot.name, whole if slot.cut is None else _PartialParameter.of(whole, slot.cut, rank)


def _load(worker: Any, named: Iterator[tuple[str, torch.Tensor]]) -> None:
    with set_current_vllm_config(worker.vllm_config):
        worker.longshore_update.load(named)


class _PartialParameter(torch.Tensor):
    """A worker's part in place of a whole parameter: when vLLM narrows it to the worker's part, it returns itself."""

    cut: int
    rank: int

    @classmethod
    def of(cls, values: torch.Tensor, cut: int, rank: int) -> "_PartialParameter":
        """Wrap this rank's part of a parameter, which is cut into equal parts along dimension `cut`."""
        piece = values.as_subclass(cls)
        piece.cut, piece.rank = cut, rank
        return piece

    def narrow(self, dim: int, start: Any, length: Any) -> torch.Tensor:
        """Return the part; raises ValueError if another one is asked for."""
        own = self.shape[self.cut]
        if (dim, int(start), int(length)) != (self.cut, self.rank * own, own):
            raise ValueError(f"vLLM cuts a parameter at {start} along dimension {dim}, and the trainer did not")
        return self.as_subclass(torch.Tensor)


class _Sources:
    """Sources of the buckets of the current update."""

    def __init__(self, device: torch.device) -> None:
        self.assembly = Assembly()
        self._device = device
        self._buffers: dict[BufferHandle, torch.Tensor] = {}
        """Shared buffers by handle; the trainer writes to two of them in turn."""
        self._broadcast: Broadcast | None = None

    def join(self, channel: BroadcastGroup, worker: int) -> None:
        """Join the broadcast, with the trainer and other engines."""
        self._broadcast = Broadcast(channel, channel.first + worker, self._device)

    def buffer(self, part: BucketPart) -> torch.Tensor:
        """Return the bytes of a part of a bucket, from shared memory or by broadcast."""
        if part.buffer is None:
            assert self._broadcast is not None, "a bucket is broadcast to those who joined"
            return receive(part, self._broadcast, self._device)
        if part.buffer not in self._buffers:
            self._buffers[part.buffer] = open_buffer(part.buffer, self._device)
        return self._buffers[part.buffer]
