"""Moments of AdamW in checkpoints of the torch trainer, in the format of torch's distributed checkpoints.

Each rank of a replica writes its shards to safetensors files of its own, and reads its shards from files of any number
of ranks.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from longshore.checks.pod_memory import moment_file_bytes

MOMENTS: Final = ("exp_avg", "exp_avg_sq")
"""Names of the moments in the state of torch's AdamW."""


def save_moments(directory: Path, moments: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
    """Write moments by name; all ranks of the group call this together (None: there is one rank)."""
    ends = list(itertools.accumulate(_local(tensor).nbytes for tensor in moments.values()))
    file_bytes = moment_file_bytes(ends[-1])
    files = {name: 1 + end // file_bytes for name, end in zip(moments, ends, strict=True)}
    writer = HuggingFaceStorageWriter(str(directory), files, save_distributed=True)
    with _plain_errors():
        save(dict(moments), storage_writer=writer, process_group=group, no_dist=group is None)


def load_moments(
    directory: Path, moments: Mapping[str, Tensor], group: dist.ProcessGroup | None, on_read: Callable[[int], object]
) -> None:
    """Fill tensors, given by name, with what any number of ranks saved.

    Args:
        directory: directory that `save_moments` wrote.
        moments: tensors to fill, whole or this rank's shards.
        group: ranks that call this together; None: there is one rank.
        on_read: function that is called with the number of values that were read.

    Raises:
        ValueError: the files lack values.
    """
    planner = _CountingPlanner(on_read)
    reader = HuggingFaceStorageReader(str(directory))
    with _plain_errors():
        load(dict(moments), storage_reader=reader, planner=planner, process_group=group, no_dist=group is None)
    if missing := sum(_local(tensor).numel() for tensor in moments.values()) - planner.num_values:
        raise ValueError(f"{directory} lacks {missing} values of the moments; restore its files")


class _CountingPlanner(DefaultLoadPlanner):
    """Counts the values that are read, because torch leaves a tensor as it is where no file has its values."""

    def __init__(self, on_read: Callable[[int], object]) -> None:
        super().__init__()
        self._on_read = on_read
        self.num_values = 0

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        self.num_values += tensor.numel()
        self._on_read(tensor.numel())


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise the error of a rank instead of the collection of all, which is no `Exception`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        try:
            yield
        except CheckpointException as failed:
            raise next(iter(failed.failures.values()))[0] from None
