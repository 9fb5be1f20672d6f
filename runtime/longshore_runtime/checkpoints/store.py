"""Checkpoints: each is one directory that appears complete or not at all.

checkpoints/step-000010/
    trainer/       weights (Hugging Face format), optimizer, random state: what the trainer saved, and its backend
    state.json     step, round policy (data cursor, long-prompt queue), counters, positions of metrics and ledger
    kept.arrow     tokens of partial responses, with the policy version of every run
checkpoints/damaged-step-000012/
    one that could not be read, until newer checkpoints have taken its place
"""

import contextlib
import json
import re
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from longshore.checks.safetensors import DamagedFile, stored_tensors
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion
from longshore_runtime.errors import Interrupted, UserError, first_line
from longshore_runtime.process.durable import free_bytes, is_no_room, no_room, sync, sync_tree, tree_bytes, write_whole
from longshore_runtime.rollout.kept_file import read_kept, write_kept
from longshore_runtime.trainer.saved_by import BACKEND_FILE

log = structlog.get_logger()

_PREFIX: Final = "step-"
_NAME: Final = re.compile(rf"{_PREFIX}(\d{{6,}})", re.ASCII)
"""Pattern of the names of checkpoints; users may keep copies under other names beside them."""
UNFINISHED: Final = ".unfinished-"
_DAMAGED: Final = "damaged-"
TRAINER_DIR: Final = "trainer"
_STATE_FILE: Final = "state.json"
_KEPT_FILE: Final = "kept.arrow"
_RUN_FIELDS: Final = ("run", "recorder", "rewards", "alarms", "origins", "lengths")
"""Fields that the state of every checkpoint of a run has."""


class DamagedCheckpoint(Exception):
    """Raised when the content of a checkpoint cannot be read: which file, and why."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    step: int
    path: Path

    @property
    def model(self) -> Path:
        """Directory of the weights, which transformers and vLLM can load, or of an adapter, which PEFT can."""
        return self.path / TRAINER_DIR

    def state(self) -> dict[str, Any]:
        """Return the state that was given to `begin`."""
        state: dict[str, Any] = orjson.loads((self.path / _STATE_FILE).read_bytes())
        return state

    def kept(self) -> dict[ResponseId, Completion]:
        """Return the partial responses."""
        return read_kept(self.path / _KEPT_FILE)

    def require_whole(self, state_fields: Sequence[str] = _RUN_FIELDS) -> None:
        """Check that every file can be read, as far as that shows without reading all weights.

        Args:
            state_fields: fields that its state must have.

        Raises:
            DamagedCheckpoint: a file is missing, cut off or unreadable.
            OSError: the storage does not answer, which says nothing about the checkpoint.
        """
        with self._reading(self.path / _STATE_FILE):
            state = self.state()
            if missing := [field for field in state_fields if field not in state]:
                raise ValueError(f"it has no {missing[0]!r}")
        with self._reading(self.path / _KEPT_FILE):
            self.kept()
        with self._reading(self.model / BACKEND_FILE):
            (self.model / BACKEND_FILE).read_text()
        for file in sorted(self.model.rglob("*")):
            if (check := _CHECKS.get(file.suffix)) is not None:
                with self._reading(file):
                    check(file)

    @contextlib.contextmanager
    def _reading(self, file: Path) -> Iterator[None]:
        """Raise DamagedCheckpoint for what is wrong with the content of a file that is read within the block."""
        try:
            yield
        except FileNotFoundError as error:
            raise DamagedCheckpoint(f"{file.relative_to(self.path)} is missing") from error
        except DamagedFile as error:
            reason = str(error).partition(";")[0]
            raise DamagedCheckpoint(f"{file.relative_to(self.path)} {reason}") from error
        except (ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile) as error:
            raise DamagedCheckpoint(f"{file.relative_to(self.path)} cannot be read: {first_line(error)}") from error


def _check_torch_file(path: Path) -> None:
    """Read the directory of a file of torch, which is at its end, and what says how its tensors belong together."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith("/data.pkl"):
                archive.read(name)


_CHECKS: Final[Mapping[str, Callable[[Path], object]]] = {
    ".json": lambda path: json.loads(path.read_bytes()),
    ".pt": _check_torch_file,
    ".safetensors": stored_tensors,
}
"""Functions that raise an error for a damaged file of the trainers, by the suffix of its name."""


class CheckpointStore:
    """The checkpoints of a job."""

    def __init__(
        self,
        directory: Path,
        keep: int,
        require_own: Callable[[], None] = lambda: None,
        state_fields: Sequence[str] = _RUN_FIELDS,
    ) -> None:
        """Use a directory; `require_own` raises UserError or Interrupted where this job is not to write any more.

        `state_fields`: those that the state of a whole checkpoint has.
        """
        self._directory = directory
        self._state_fields = state_fields
        self._keep = keep
        self.require_own = require_own
        self._lock = threading.Lock()
        """Held while a checkpoint gets its name, and while the store closes."""
        self._is_closed = False

    def progress(self, step: int) -> tuple[int, int]:
        """Return the bytes of the checkpoint being written, and of the newest one, which is about as large (0: none).

        One that was written before the first update is no measure: it lacks the moments of the optimizer. Called from
        any thread.
        """
        newest = self.newest()
        is_measure = newest is not None and newest.step > 0
        return tree_bytes(self._unfinished(step)), tree_bytes(newest.path) if newest and is_measure else 0

    def newest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint."""
        return next(iter(self._all()), None)

    def newest_whole(self, on_damaged: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest checkpoint that can be read, which is `newest` from now on; None: there is none at all.

        Newer ones are set aside under another name; `on_damaged` is called with a sentence about each.

        Raises:
            UserError: there are checkpoints, and none can be read. They stay as they are.
            OSError: the storage does not answer.
        """
        damaged: dict[Checkpoint, str] = {}
        for checkpoint in self._all():
            try:
                checkpoint.require_whole(self._state_fields)
            except DamagedCheckpoint as damage:
                damaged[checkpoint] = f"the checkpoint of step {checkpoint.step} is damaged: {damage}"
                continue
            for other, sentence in damaged.items():
                left = self._set_aside(other)
                sentence = f"{sentence}. The job continues from step {checkpoint.step}; the rest is in {left.name}"
                log.warning("a checkpoint is damaged", reason=sentence, directory=str(left))
                on_damaged(sentence)
            return checkpoint
        if not damaged:
            return None
        sentence, *others = damaged.values()
        before = ", and no older one can be read either" if others else ""
        raise UserError(
            f"storage.output: {sentence}{before}; restore its files in {self._directory}, or remove that directory to "
            "begin again"
        )

    def _set_aside(self, damaged: Checkpoint) -> Path:
        """Rename a checkpoint, so that it counts as none, and a new one of its step can take its place."""
        self.require_own()
        left = damaged.path.with_name(f"{_DAMAGED}{damaged.path.name}")
        if left.exists():  # One of the same step, by an earlier attempt.
            shutil.rmtree(left)
        damaged.path.rename(left)
        sync(self._directory)
        return left

    def begin(
        self,
        step: int,
        state: Mapping[str, Any],
        kept: Mapping[ResponseId, Completion],
        begin_save: Callable[[Path], Callable[[], None]],
    ) -> Callable[[], Checkpoint]:
        """Begin to write a checkpoint aside.

        One of that step that is there already has its weights and partial responses, and takes the new state: the step
        was evaluated since.

        Args:
            step: step after which everything was as it is saved.
            state: state of all parts but the trainers.
            kept: partial responses.
            begin_save: function that begins to write the files of the trainers, and returns what waits for them.

        Returns:
            Function that does the rest, in any thread: it waits, makes the checkpoint durable, gives it its name in one
            move, and prunes old ones.

        Raises:
            UserError: there is no room for it, or another job writes checkpoints here. Both may raise it.
        """
        self.require_own()
        final = self._directory / f"{_PREFIX}{step:06d}"
        content = orjson.dumps(dict(state), option=orjson.OPT_INDENT_2)
        if final.exists():
            write_whole(final / _STATE_FILE, content)
            return lambda: Checkpoint(step, final)
        unfinished = self._unfinished(step)
        self._remove_unfinished()
        needed_bytes = self._require_room(final)

        @contextlib.contextmanager
        def cleaning_up() -> Iterator[None]:
            try:
                yield
            except Exception as error:
                is_full = is_no_room(error, self._directory)
                self.require_own()  # Another coordinator may write here by now, and remove what is unfinished.
                with self._lock:
                    if not self._is_closed:
                        shutil.rmtree(unfinished, ignore_errors=True)
                if is_full:
                    raise UserError(no_room(final, needed_bytes)) from error
                raise

        with cleaning_up():
            (unfinished / TRAINER_DIR).mkdir(parents=True)
            wait_saved = begin_save(unfinished / TRAINER_DIR)

        def finish() -> Checkpoint:
            with cleaning_up():
                wait_saved()
                with self._lock:
                    if self._is_closed:
                        raise Interrupted("the session has ended before its checkpoint was written")
                    (unfinished / _STATE_FILE).write_bytes(content)
                    write_kept(unfinished / _KEPT_FILE, kept)
                    sync_tree(unfinished)
                    self.require_own()  # Writing may have taken minutes.
                    unfinished.rename(final)
                    sync(self._directory)
                    self._prune()
            return Checkpoint(step, final)

        return finish

    def close(self) -> None:
        """Let no checkpoint that is still being written appear any more: another session may begin in its place."""
        with self._lock:
            self._is_closed = True

    def _unfinished(self, step: int) -> Path:
        return self._directory / f"{UNFINISHED}{step:06d}"

    def _remove_unfinished(self) -> None:
        """Remove what was left by coordinators that ended while they wrote or deleted: this one alone writes now."""
        for left in self._directory.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)

    def _require_room(self, final: Path) -> int | None:
        """Return bytes that the next checkpoint takes, as far as the newest one tells."""
        newest = self.newest()
        if newest is None:
            return None
        needed_bytes = tree_bytes(newest.path)
        if free_bytes(self._directory) < needed_bytes:
            raise UserError(no_room(final, needed_bytes))
        return needed_bytes

    def _all(self, prefix: str = "") -> list[Checkpoint]:
        """Return the complete checkpoints, newest first; with a prefix, those whose names begin with it."""
        if not self._directory.is_dir():
            return []
        found = [(_NAME.fullmatch(path.name.removeprefix(prefix)), path) for path in self._directory.glob(f"{prefix}*")]
        complete = [Checkpoint(int(name[1]), path) for name, path in found if name]
        return sorted(complete, key=lambda checkpoint: checkpoint.step, reverse=True)

    def _prune(self) -> None:
        newest = self._all()
        kept, old = newest[: self._keep], newest[self._keep :]
        damaged = [one for one in self._all(_DAMAGED) if len(kept) == self._keep and one.step < kept[-1].step]
        for one in (*old, *damaged):
            try:
                # Renamed first, so that no reader sees a checkpoint that lacks files.
                shutil.rmtree(one.path.rename(one.path.with_name(f"{UNFINISHED}{one.path.name}")))
            except OSError as error:  # Such as a file that is open elsewhere, on NFS.
                log.warning("checkpoint not deleted; tried again before the next one", step=one.step, reason=str(error))
            else:
                log.info("checkpoint pruned", step=one.step)
