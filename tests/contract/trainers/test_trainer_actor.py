"""A rank writes a checkpoint in a thread of its own, and changes nothing meanwhile that it writes."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path

import numpy as np
import pytest
import ray

from longshore.api.training import TrainerBackend
from longshore_runtime.backends.fake_trainer import FakeTrainer
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.storage import JobStorage
from longshore_runtime.trainer import actor as trainer_actor
from longshore_runtime.trainer.saved_by import sign
from tests.contract.trainers.replicas import OPTIONS, make_samples

SAMPLES = make_samples()


class Late(FakeTrainer):
    """Writes what it has once somebody waits for that."""

    def __init__(self) -> None:
        super().__init__(Path(), OPTIONS)
        self.is_awaited = threading.Event()

    def begin_save(self, directory: Path) -> Callable[[], None]:
        def write() -> None:
            assert self.is_awaited.wait(60), "nobody waits"
            FakeTrainer.begin_save(self, directory)()

        return write


@pytest.mark.parametrize("change", ["update", "load"])
def test_what_changes_weights_waits_until_they_are_written(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, other, restored = Late(), FakeTrainer(Path(), OPTIONS), FakeTrainer(Path(), OPTIONS)

    def wait_seen(futures: Sequence["Future[None]"]) -> None:
        trainer.is_awaited.set()
        wait(futures)

    monkeypatch.setattr(trainer_actor, "wait", wait_seen)
    monkeypatch.setattr(ray, "get", list)  # There are no passes to get.
    rank = trainer_actor.TrainerActor({})
    rank._spec, rank._trainer = TrainerSpec(TrainerBackend.FAKE, OPTIONS), trainer
    rank._storage = JobStorage(tmp_path, "output")
    other.accumulate(SAMPLES)
    other.update(1.0)
    other.begin_save(tmp_path / "other")()
    sign(tmp_path / "other", TrainerBackend.FAKE)
    before = dict(trainer.weights())

    rank.begin_save("saved")
    rank.accumulate(SAMPLES)
    if change == "update":
        rank.update(1.0, None, [])
    else:
        rank.load("other")
    rank.wait_saved()
    restored.load(tmp_path / "saved")
    assert (trainer.policy_version, restored.policy_version) == (1, 0)
    assert all(np.array_equal(before[name], values) for name, values in restored.weights())
