"""Checkpoints: each is one directory that appears complete or not at all.

checkpoints/step-000010/
    trainer/       weights (Hugging Face format), optimizer, random state: what the trainer saved, and its backend
    state.json     step, round policy (data cursor, long-prompt queue), counters, positions of metrics and ledger
    kept.json      tokens of partial responses, with the policy version of every run
"""

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore_runtime.durable import free_bytes, is_no_room, no_room, sync, sync_tree, tree_bytes, write_whole
from longshore_runtime.engine_protocol import Completion, FinishReason, TokenRun
from longshore_runtime.errors import UserError

log = structlog.get_logger()

_PREFIX: Final = "step-"
_NAME: Final = re.compile(rf"{_PREFIX}(\d{{6,}})", re.ASCII)
"""Users may keep copies under other names beside them."""
UNFINISHED: Final = ".unfinished-"
TRAINER_DIR: Final = "trainer"
_STATE_FILE: Final = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    step: int
    path: Path

    @property
    def model(self) -> Path:
        """Its weights, loadable by transformers and vLLM."""
        return self.path / TRAINER_DIR

    def state(self) -> dict[str, Any]:
        """Return what was given to `publish`."""
        state: dict[str, Any] = orjson.loads((self.path / _STATE_FILE).read_bytes())
        return state

    def kept(self) -> dict[ResponseId, Completion]:
        """Partial responses."""
        rows = orjson.loads((self.path / "kept.json").read_bytes())
        return {_response_id(row["response"]): _completion(row) for row in rows}


class CheckpointStore:
    """The checkpoints of a job."""

    def __init__(self, directory: Path, keep: int, require_own: Callable[[], None] = lambda: None) -> None:
        """`require_own` raises UserError or Interrupted where this job is not to write any more."""
        self._directory = directory
        self._keep = keep
        self.require_own = require_own

    def progress(self, step: int) -> tuple[int, int]:
        """Bytes of the checkpoint that is being written, and of the newest one, which is about as large (0: none).

        Called from any thread.
        """
        newest = self.newest()
        return tree_bytes(self._unfinished(step)), tree_bytes(newest.path) if newest is not None else 0

    def newest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint."""
        return max(self._all(), key=lambda checkpoint: checkpoint.step, default=None)

    def publish(
        self,
        step: int,
        state: Mapping[str, Any],
        kept: Mapping[ResponseId, Completion],
        save_trainer: Callable[[Path], None],
    ) -> Checkpoint:
        """Write a checkpoint aside, make it durable, and give it its name in one move; then prune old ones.

        One of that step that is there already has its weights and partial responses, and takes the new state: the step
        was evaluated since.

        Raises:
            UserError: there is no room for it, or another job writes checkpoints here.
        """
        self.require_own()
        final = self._directory / f"{_PREFIX}{step:06d}"
        content = orjson.dumps(dict(state), option=orjson.OPT_INDENT_2)
        if final.exists():
            write_whole(final / _STATE_FILE, content)
            return Checkpoint(step, final)
        unfinished = self._unfinished(step)
        self._remove_unfinished()
        needed_bytes = self._require_room(final)
        try:
            (unfinished / TRAINER_DIR).mkdir(parents=True)
            save_trainer(unfinished / TRAINER_DIR)
            (unfinished / _STATE_FILE).write_bytes(content)
            (unfinished / "kept.json").write_bytes(orjson.dumps([_row(*item) for item in kept.items()]))
            sync_tree(unfinished)
            self.require_own()  # Writing may have taken minutes.
            unfinished.rename(final)
            sync(self._directory)
        except Exception as error:
            is_full = is_no_room(error, self._directory)
            self.require_own()  # It may be the checkpoint of another coordinator, which removes what is unfinished.
            shutil.rmtree(unfinished, ignore_errors=True)
            if is_full:
                raise UserError(no_room(final, needed_bytes)) from error
            raise
        self._prune()
        return Checkpoint(step, final)

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

    def _all(self) -> list[Checkpoint]:
        if not self._directory.is_dir():
            return []
        found = [(_NAME.fullmatch(path.name), path) for path in self._directory.iterdir()]
        return [Checkpoint(int(name[1]), path) for name, path in found if name]

    def _prune(self) -> None:
        for old in sorted(self._all(), key=lambda checkpoint: checkpoint.step)[: -self._keep]:
            try:
                # Renamed first, so that no reader sees a checkpoint that lacks files.
                shutil.rmtree(old.path.rename(old.path.with_name(f"{UNFINISHED}{old.path.name}")))
            except OSError as error:  # Such as a file that is open elsewhere, on NFS.
                log.warning("checkpoint not deleted; tried again before the next one", step=old.step, reason=str(error))
            else:
                log.info("checkpoint pruned", step=old.step)


def _row(response: ResponseId, completion: Completion) -> dict[str, Any]:
    return {
        "response": [response.draw.epoch, response.draw.index, response.index],
        # Not by `asdict`, which copies each number: 15 s for ten million tokens.
        "runs": [
            {"policy_version": run.policy_version, "tokens": run.tokens, "log_probs": run.log_probs}
            for run in completion.runs
        ],
        "finish_reason": completion.finish_reason.value,
        "engine_step": completion.engine_step,
    }


def _response_id(row: list[int]) -> ResponseId:
    epoch, index, response = row
    return ResponseId(Draw(epoch, index), response)


def _completion(row: Mapping[str, Any]) -> Completion:
    runs = tuple(TokenRun(run["policy_version"], tuple(run["tokens"]), tuple(run["log_probs"])) for run in row["runs"])
    return Completion(str(_response_id(row["response"])), runs, FinishReason(row["finish_reason"]), row["engine_step"])
