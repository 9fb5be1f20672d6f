"""Checkpoints of a run: the files of the trainers, and the state that all other parts had after the same step."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

import structlog

from longshore.api.round_status import RoundKind
from longshore.api.runtime_status import ProgressUnit, RuntimeActivity
from longshore.policy.benefit_gate import BenefitGate
from longshore.policy.length_distribution import LengthDistribution
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.checkpoints.run_state import RunState
from longshore_runtime.checkpoints.store import Checkpoint
from longshore_runtime.errors import TrainerLost, UserError
from longshore_runtime.process.durable import tree_bytes
from longshore_runtime.process.repeated import PROGRESS_EVERY_S, repeated
from longshore_runtime.step.parts import Parts
from longshore_runtime.telemetry.alarms import Alarms

log = structlog.get_logger()

_ASK_EVERY_S: Final = 0.5
"""Seconds between two questions whether the pod is to stop, while a checkpoint is awaited."""


class RunCheckpoints:
    """Reads and writes the checkpoints of a run."""

    def __init__(
        self,
        parts: Parts,
        alarms: Alarms,
        lengths: MutableMapping[RoundKind, LengthDistribution],
        gate: BenefitGate | None,
        max_response_tokens: int,
    ) -> None:
        """Take the parts; `lengths` and `gate` are what the run learns about its rounds."""
        self._parts = parts
        self._alarms = alarms
        self._lengths = lengths
        self._gate = gate
        self._max_response_tokens = max_response_tokens
        self._writing: tuple[int, Future[Checkpoint]] | None = None
        """Step whose checkpoint is being written, and the end of that."""

    def restore(self) -> RunState | None:
        """Put everything back to the newest checkpoint; None: there is none. Raises UserError for another job."""
        parts, checkpoint = self._parts, self._parts.checkpoints.newest()
        if checkpoint is None:
            return None
        log.info("resuming", step=checkpoint.step)
        parts.recorder.activity(RuntimeActivity.RESTORE)
        state = checkpoint.state()
        run = RunState.load(state["run"], checkpoint.kept()).with_rewards(state["rewards"])
        try:
            parts.policy.load_state(run.policy)
        except ValueError as error:
            raise UserError(str(error)) from error
        _require_room(run.kept.values(), self._max_response_tokens)
        with self._load_reported(checkpoint):
            self.load_trainers()
        for kind, exported in state["lengths"].items():
            self._lengths[RoundKind(kind)].load_state(exported)
        # The job may have been changed: it had no gate before, or another strategy.
        if self._gate is not None and "benefit" in state:
            self._gate.load_state(state["benefit"])
        if parts.auto is not None and "auto" in state:
            parts.auto.load_state(state["auto"])
        parts.rewards.load_state(run.rewards)
        parts.recorder.resume(run, state["recorder"])
        parts.records.rewind(run.step)
        self._alarms.load(state["alarms"])
        return run

    @contextmanager
    def _load_reported(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Report within the block how much of the checkpoint the trainers have loaded."""
        parts, total_bytes = self._parts, tree_bytes(checkpoint.model)

        def report() -> None:  # Called from another thread while the trainers load.
            num_bytes = int(parts.trainers.loaded_share() * total_bytes)
            parts.recorder.progress(ProgressUnit.BYTES, num_bytes, total_bytes)

        with repeated(report, PROGRESS_EVERY_S):
            yield

    def load_trainers(self) -> None:
        """Give the trainers the newest checkpoint, if there is one."""
        checkpoint = self._parts.checkpoints.newest()
        if checkpoint is not None:
            self._parts.trainers.load(self._parts.storage.relative(checkpoint.model))

    def begin(self, run: RunState, timeout_s: float = math.inf) -> None:
        """Begin to write a checkpoint, while the next round runs; raises TrainerLost when the trainers' state is gone.

        `timeout_s`: seconds in which the trainers must have written it.
        """
        assert self._writing is None, "one is written at a time"
        parts = self._parts
        state = {
            "run": run.export(),
            "recorder": parts.recorder.export(),
            "rewards": run.rewards,
            "alarms": self._alarms.export(),
            "origins": {kind: asdict(origin) for kind, origin in parts.origins.items()},
            **({"auto": parts.auto.export_state()} if parts.auto is not None else {}),
            **({"benefit": self._gate.export_state()} if self._gate is not None else {}),
            "lengths": {kind.value: lengths.export_state() for kind, lengths in self._lengths.items()},
        }

        parts.recorder.activity(RuntimeActivity.CHECKPOINT)
        finish = parts.checkpoints.begin(
            run.step,
            state,
            run.kept,
            lambda directory: parts.trainers.begin_save(parts.storage.relative(directory), timeout_s=timeout_s),
        )
        self._writing = run.step, _in_thread(finish)

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint was begun and not finished."""
        return self._writing is not None

    def finish(self, timeout_s: float = math.inf) -> bool:
        """Wait for the checkpoint that is being written; return whether there was one.

        Raises:
            TrainerLost: its trainers are gone, and it has not come to be; or it takes longer, and goes on.
            Interrupted: the pod was asked to stop, and nobody has said how long this may take.
            UserError: there was no room for it, or another job writes checkpoints here.
        """
        if self._writing is None:
            return False
        parts, (step, written) = self._parts, self._writing

        def report() -> None:  # Called from another thread while the checkpoint is written.
            parts.recorder.progress(ProgressUnit.BYTES, *parts.checkpoints.progress(step))

        if not written.done():
            parts.recorder.activity(RuntimeActivity.CHECKPOINT)
            with repeated(report, PROGRESS_EVERY_S):
                self._wait(written, timeout_s)
        self._writing = None
        parts.recorder.checkpoint(written.result())
        return True

    def _wait(self, written: "Future[Checkpoint]", timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not wait([written], min(_ASK_EVERY_S, max(0.0, deadline_s - time.monotonic()))).done:
            if time.monotonic() >= deadline_s:
                raise TrainerLost(f"a checkpoint is not written after {timeout_s:.0f} s")
            if timeout_s == math.inf:
                self._parts.stop.require_none()

    def export_model(self, step: int) -> str:
        """Copy the model of the newest checkpoint, that of this step, to where users find it; returns where."""
        newest = self._parts.checkpoints.newest()
        assert newest is not None and newest.step == step
        parts, model = self._parts, self._parts.storage.output_dir / "model"

        def report() -> None:  # Called from another thread while the model is copied.
            parts.recorder.progress(ProgressUnit.BYTES, *parts.export.progress(newest, model), "the final model")

        with repeated(report, PROGRESS_EVERY_S):
            parts.export.write(newest, model, parts.checkpoints.require_own)
        return parts.storage.relative(model)


def _in_thread(finish: Callable[[], Checkpoint]) -> "Future[Checkpoint]":
    """Finish a checkpoint in a thread, which does not keep a coordinator that ends from ending."""
    written: Future[Checkpoint] = Future()

    def run() -> None:
        try:
            written.set_result(finish())
        except BaseException as error:  # noqa: BLE001 - whoever waits for it raises it
            written.set_exception(error)

    threading.Thread(target=run, name="checkpoint", daemon=True).start()
    return written


def _require_room(kept: Iterable[Completion], max_response_tokens: int) -> None:
    """Raise UserError if a partial response has no token left to sample."""
    partial = [completion.num_tokens for completion in kept if completion.finish_reason is FinishReason.ABORT]
    longest = max(partial, default=0)
    if longest >= max_response_tokens:
        raise UserError(
            f"algorithm.maxResponseTokens: {max_response_tokens} is too few for a partial response that already has "
            f"{longest} tokens; restore it, or start a new job with another storage.output"
        )
