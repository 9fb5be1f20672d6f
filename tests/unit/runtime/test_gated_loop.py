"""A streamed job reports its rounds to the benefit gate, and keeps what that has learned."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from longshore.api.rollout import Handover, Strategy
from longshore.api.round_status import RoundKind
from longshore_runtime.backends.engine_protocol import EngineStats
from longshore_runtime.backends.trainer_protocol import Sample, TrainResult
from longshore_runtime.checkpoints.store import CheckpointStore
from longshore_runtime.elastic.repurposing import RepurposingOptions
from longshore_runtime.trainer.group import PendingUpdate
from tests.unit.runtime.scripted_loop import ALGORITHM, NUM_STEPS, Engines, Trainers, run


class Replicas(Trainers):
    """One in each of two pods; a token takes a tenth of a second."""

    num_replicas = 2

    def give(self, update: PendingUpdate, replica: int, samples: Sequence[Sample]) -> Any:
        update.samples += samples
        self.num_given += len(samples)
        done: Future[None] = Future()
        done.set_result(None)
        return SimpleNamespace(future=lambda: done)

    def end(
        self,
        update: PendingUpdate,
        *,
        verify: bool = False,
        batch: Sequence[Sample] | None = None,
        max_mismatch: float | None = None,
    ) -> None:
        update.steps.append(max_mismatch)

    def _train(self, samples: Sequence[Sample], max_mismatch: float | None = None) -> TrainResult:
        num_tokens = sum(one.num_tokens for one in samples)
        return replace(super()._train(samples, max_mismatch), gradients_s=num_tokens / 10)

    def pods_of(self, replica: int) -> tuple[int, ...]:
        return (replica,)


@dataclass
class Timed(Engines):
    """One in each of two pods; a step takes a second."""

    def stats(self) -> dict[int, EngineStats]:
        return {engine: replace(self._stats, num_running=len(self.running[engine])) for engine in self.running}

    @property
    def _stats(self) -> EngineStats:
        num_running = max(map(len, self.running.values()))
        return EngineStats(
            num_steps=self.steps, num_running=num_running, kv_capacity_tokens=500, read_s=float(self.steps)
        )


def test_forecasts_are_reported_from_step_two_and_checkpoints_keep_what_was_learned(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {
        "strategy": Strategy.SYNCHRONOUS,
        "kinds": (Replicas, Timed),
        "handover": Handover.STREAMED,
        "trains_during_rollout": False,
        "repurposing": RepurposingOptions(attempt=1, max_response_tokens=64, fixed_fraction=None),
    }
    outcome = run(root=tmp_path, **options)
    assert outcome.error == ""
    forecasts = {report.step: report.repurposing for report in outcome.reports}
    assert forecasts[0] == {}, "nothing is known in the first round"
    benefit = forecasts[NUM_STEPS][RoundKind.FULL]
    assert benefit.rollout_longer_s is not None
    assert benefit.training_shorter_s is not None and benefit.training_shorter_s > 0
    store = CheckpointStore(tmp_path / "output" / "checkpoints", keep=2)
    assert _num_rounds(store) == NUM_STEPS
    run(root=tmp_path, algorithm=ALGORITHM.model_copy(update={"steps": NUM_STEPS + 2}), **options)
    assert _num_rounds(store) == NUM_STEPS + 2, "a run that goes on has what was learned before"


def test_streamed_rounds_train_the_default_weights_and_long_ones_repurpose_no_pod(tmp_path: Path) -> None:
    options: dict[str, Any] = {"kinds": (Replicas, Timed), "trains_during_rollout": False}
    repurposing = RepurposingOptions(attempt=1, max_response_tokens=64, fixed_fraction=None)
    default = run(**options)
    streamed = run(root=tmp_path, handover=Handover.STREAMED, repurposing=repurposing, **options)
    assert streamed.error == ""
    assert streamed.model == default.model
    assert [row["num_updates"] for row in streamed.ledger] == [row["num_updates"] for row in default.ledger]
    has_several = [row["num_updates"] > 1 for row in streamed.ledger]
    assert any(has_several)
    assert ["replicas" not in row for row in streamed.ledger] == has_several
    benefit = _state(CheckpointStore(tmp_path / "output" / "checkpoints", keep=2))["kinds"]
    num_streamed = len(has_several) - sum(has_several)
    assert sum(known["batch_tokens"]["count"] for known in benefit.values()) == num_streamed


def _num_rounds(store: CheckpointStore) -> int:
    """That were replayed."""
    return int(_state(store)["kinds"]["Full"]["all_s"]["count"])


def _state(store: CheckpointStore) -> Any:
    """State of the benefit gate in the newest checkpoint."""
    newest = store.newest()
    assert newest is not None
    return newest.state()["benefit"]
