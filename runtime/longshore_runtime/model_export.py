"""The final model: the weights of a checkpoint as users of the model want them."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from longshore_runtime.checkpoint import UNFINISHED, Checkpoint
from longshore_runtime.durable import is_no_room, no_room, sync_tree, tree_bytes
from longshore_runtime.errors import UserError
from longshore_runtime.tensor_types import TensorTypes, describe_types
from longshore_runtime.trained_chat import TrainedChat
from longshore_runtime.trainer.saved_by import BACKEND_FILE

_NO_WEIGHTS: Final = ("*.pt", "optimizer", BACKEND_FILE)
"""Files besides the weights in the trainer's part, by the names that the backends use."""
_IGNORED: Final = shutil.ignore_patterns(*_NO_WEIGHTS)


@dataclass(frozen=True)
class ModelExport:
    """What of a final model its checkpoint does not have."""

    chat: TrainedChat = field(default_factory=TrainedChat)
    types: TensorTypes = field(default_factory=TensorTypes)

    def write(self, checkpoint: Checkpoint, target: Path) -> None:
        """Copy the weights of a checkpoint, without trainer state, so that `target` is complete or absent."""
        unfinished = _unfinished(target)
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            shutil.copytree(checkpoint.model, unfinished, ignore=_IGNORED, copy_function=self._copy)
            if not self.types.are_those_of_trainers:
                describe_types(unfinished)
            self.chat.write(unfinished)
            sync_tree(unfinished)
        except (OSError, shutil.Error) as error:
            is_full = is_no_room(error, target.parent)
            shutil.rmtree(unfinished, ignore_errors=True)
            if is_full:
                raise UserError(no_room(target)) from error
            raise
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)

    def progress(self, checkpoint: Checkpoint, target: Path) -> tuple[int, int]:
        """Return bytes of the copy that `write` makes, so far and in the end. Called from any thread."""
        names = [path.name for path in checkpoint.model.iterdir()]
        exported = set(names) - _IGNORED(str(checkpoint.model), names)
        return tree_bytes(_unfinished(target)), sum(self._num_bytes(checkpoint.model / name) for name in exported)

    def _copy(self, saved: str, target: str) -> None:
        if self._is_converted(Path(saved)):
            self.types.convert(Path(saved), Path(target))
        else:
            shutil.copy2(saved, target)

    def _num_bytes(self, saved: Path) -> int:
        if saved.is_dir():
            return tree_bytes(saved)
        return self.types.num_bytes(saved) if self._is_converted(saved) else saved.stat().st_size

    def _is_converted(self, saved: Path) -> bool:
        return saved.suffix == ".safetensors" and not self.types.are_those_of_trainers


def _unfinished(target: Path) -> Path:
    return target.with_name(f"{UNFINISHED}{target.name}")
