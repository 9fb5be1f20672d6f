"""The final model: the weights of a checkpoint as users of the model want them."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from longshore_runtime.checkpoints.store import UNFINISHED, Checkpoint
from longshore_runtime.checkpoints.tensor_types import TensorTypes, describe_types
from longshore_runtime.checkpoints.trained_chat import TrainedChat
from longshore_runtime.errors import UserError
from longshore_runtime.process.durable import apply_umask, is_no_room, no_room, sync, sync_tree, tree_bytes
from longshore_runtime.trainer.saved_by import BACKEND_FILE

_NO_WEIGHTS: Final = ("*.pt", "optimizer", BACKEND_FILE)
"""Files besides the weights in the trainer's part, by the names that the backends use."""
_IGNORED: Final = shutil.ignore_patterns(*_NO_WEIGHTS)


@dataclass(frozen=True)
class ModelExport:
    """Writes the final model from a checkpoint, with the chat template and tensor types that this lacks."""

    chat: TrainedChat = field(default_factory=TrainedChat)
    types: TensorTypes = field(default_factory=TensorTypes)

    def write(self, checkpoint: Checkpoint, target: Path, require_own: Callable[[], None] = lambda: None) -> None:
        """Copy the weights of a checkpoint, without trainer state, so that `target` is complete or absent.

        `require_own` raises where this job is not to write there any more.

        Raises:
            UserError: there is no room for it.
        """
        require_own()
        for left in target.parent.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        unfinished = _unfinished(target)
        try:
            shutil.copytree(checkpoint.model, unfinished, ignore=_IGNORED, copy_function=self._copy)
            if not self.types.are_those_of_trainers:
                describe_types(unfinished)
            self.chat.write(unfinished)
            apply_umask(unfinished)
            sync_tree(unfinished)
            require_own()  # Copying may have taken minutes.
            _replace(unfinished, target)
        except Exception as error:
            is_full = is_no_room(error, target.parent)
            require_own()  # Another coordinator removes what is unfinished.
            shutil.rmtree(unfinished, ignore_errors=True)
            if is_full:
                raise UserError(no_room(target)) from error
            raise

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


def _replace(finished: Path, target: Path) -> None:
    if target.exists():
        # Renamed first, so that no reader sees a model that lacks files, and files may be open elsewhere, as on NFS.
        old = Path(mkdtemp(prefix=UNFINISHED, dir=target.parent))
        target.rename(old)
        finished.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        finished.rename(target)
    sync(target.parent)


def _unfinished(target: Path) -> Path:
    return target.with_name(f"{UNFINISHED}{target.name}")
