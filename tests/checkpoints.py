"""Checkpoints that are written at once."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion
from longshore_runtime.checkpoints.store import Checkpoint, CheckpointStore


def write_checkpoint(
    store: CheckpointStore,
    step: int,
    state: Mapping[str, Any],
    kept: Mapping[ResponseId, Completion],
    save: Callable[[Path], None],
) -> Checkpoint:
    """Write a checkpoint; `save` writes the files of the trainers."""
    return store.begin(step, state, kept, lambda directory: partial(save, directory))()
