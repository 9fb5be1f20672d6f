"""The final model: the weights of a checkpoint as users of the model want them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from longshore.checks.model_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, INDEX, TOKENIZER_FILES, weight_files
from longshore_runtime.checkpoints.merged_weights import merge
from longshore_runtime.checkpoints.store import UNFINISHED, Checkpoint
from longshore_runtime.checkpoints.tensor_types import TensorTypes, describe_types
from longshore_runtime.checkpoints.trained_chat import TrainedChat
from longshore_runtime.errors import UserError
from longshore_runtime.process.durable import apply_umask, is_no_room, no_room, sync, sync_tree, tree_bytes
from longshore_runtime.trainer.saved_by import BACKEND_FILE

ADAPTER: Final = "adapter"
"""Name of the directory with the final adapter, beside that of the final model."""
_NO_WEIGHTS: Final = ("*.pt", "optimizer", "critic", BACKEND_FILE)
"""Files besides the weights in the trainer's part, by the names that the backends use."""
_IGNORED: Final = shutil.ignore_patterns(*_NO_WEIGHTS)


@dataclass(frozen=True)
class BaseModel:
    """Initial model of a job whose checkpoints hold an adapter."""

    directory: Path
    name: str
    """Name of it in the configuration of the adapter."""


@dataclass(frozen=True)
class ModelExport:
    """Writes the final model from a checkpoint, with the chat template and tensor types that this lacks."""

    chat: TrainedChat = field(default_factory=TrainedChat)
    types: TensorTypes = field(default_factory=TensorTypes)
    base: BaseModel | None = None
    """Model to which the adapter of a checkpoint is added; None: checkpoints hold all weights."""

    def write(self, checkpoint: Checkpoint, target: Path, require_own: Callable[[], None] = lambda: None) -> None:
        """Copy the weights of a checkpoint, without trainer state, so that `target` is complete or absent.

        An adapter is written to the directory `adapter` beside it, and `target` gets the weights that it makes of those
        of its base model, in their types. `require_own` raises where this job is not to write there any more.

        Raises:
            UserError: there is no room for it.
        """
        require_own()
        for left in target.parent.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        if self.base is None:
            _write_whole(target, lambda directory: self._copy_all(checkpoint.model, directory), require_own)
            return
        base = self.base
        _write_whole(target, lambda directory: self._merge(base, checkpoint.model, directory), require_own)
        adapter = target.with_name(ADAPTER)
        _write_whole(adapter, lambda directory: _copy_adapter(base, checkpoint.model, directory), require_own)

    def progress(self, checkpoint: Checkpoint, target: Path) -> tuple[int, int]:
        """Return bytes of the copy that `write` makes, so far and in the end. Called from any thread."""
        source, ignored = (checkpoint.model, _IGNORED) if self.base is None else (self.base.directory, _no_model_files)
        names = [path.name for path in source.iterdir()]
        exported = set(names) - ignored(str(source), names)
        return tree_bytes(_unfinished(target)), sum(self._num_bytes(source / name) for name in exported)

    def _copy_all(self, saved: Path, directory: Path) -> None:
        shutil.copytree(saved, directory, ignore=_IGNORED, copy_function=self._copy)
        if not self.types.are_those_of_trainers:
            describe_types(directory)
        self.chat.write(directory)

    def _merge(self, base: BaseModel, saved: Path, directory: Path) -> None:
        shutil.copytree(base.directory, directory, ignore=_no_model_files, copy_function=shutil.copyfile)
        merge(directory, saved)
        self.chat.write(directory)

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
        return self.base is None and saved.suffix == ".safetensors" and not self.types.are_those_of_trainers


def _write_whole(target: Path, fill: Callable[[Path], None], require_own: Callable[[], None]) -> None:
    unfinished = _unfinished(target)
    try:
        fill(unfinished)
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


def _no_model_files(directory: str, names: list[str]) -> set[str]:
    """Return the files and directories that are no part of a Hugging Face checkpoint."""
    path = Path(directory)
    wanted = {file.name for file in weight_files(path)} | {"config.json", "generation_config.json", INDEX}
    return {
        name
        for name in names
        if (path / name).is_dir()
        or not (name in wanted or any(fnmatchcase(name, pattern) for pattern in TOKENIZER_FILES))
    }


def _copy_adapter(base: BaseModel, saved: Path, directory: Path) -> None:
    directory.mkdir()
    shutil.copyfile(saved / ADAPTER_WEIGHTS, directory / ADAPTER_WEIGHTS)
    config = json.loads((saved / ADAPTER_CONFIG).read_bytes()) | {"base_model_name_or_path": base.name}
    (directory / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


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
