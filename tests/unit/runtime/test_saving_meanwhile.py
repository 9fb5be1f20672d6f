"""The next round runs while a checkpoint is written, and what is being written is not lost."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from longshore_runtime.backends.engine_protocol import Request
from longshore_runtime.checkpoints.store import CheckpointStore
from longshore_runtime.errors import Interrupted, TrainerLost, UserError
from longshore_runtime.stop import Stop
from tests.unit.runtime.scripted_loop import ALGORITHM, Engines, Trainers, plain_run, raise_error, run


def writing_after(may_write: threading.Event) -> type[Trainers]:
    """Return trainers that write the checkpoint of the second step once they may."""

    class Late(Trainers):
        def begin_save(self, directory: str, **limit: float) -> Callable[[], None]:
            write, is_second = super().begin_save(directory), self._trainer.policy_version == 2

            def wait() -> None:
                assert not is_second or may_write.wait(60), "nothing goes on"
                write()

            return wait

    return Late


def sampling_third_round(begin: Callable[[], object]) -> type[Engines]:
    """Return engines that call a function whenever they are given requests of the third round."""

    class Sampling(Engines):
        def add(self, engine: int, requests: Sequence[Request]) -> None:
            super().add(engine, requests)
            if self.versions[-1] == 2:
                begin()

    return Sampling


def test_the_next_round_runs_while_a_checkpoint_is_written() -> None:
    has_begun = threading.Event()
    outcome = run(kinds=(writing_after(has_begun), sampling_third_round(has_begun.set)), every=2)
    assert (outcome.error, outcome.model) == ("", plain_run().model)
    assert {0, 2} < {one.checkpoint_step for one in outcome.reports}


def test_after_a_checkpoint_that_was_lost_with_its_trainers_the_step_saves_another() -> None:
    class LostWhileWriting(Trainers):
        def begin_save(self, directory: str, **limit: float) -> Callable[[], None]:
            write = super().begin_save(directory)
            if self._trainer.policy_version == 0 or self.generation > 0:
                return write
            self._is_lost = True
            return partial(raise_error, TrainerLost("a rank is gone"))

    outcome = run(kinds=(LostWhileWriting, Engines), every=10, algorithm=ALGORITHM.model_copy(update={"steps": 14}))
    assert outcome.error == ""
    saved = {one.checkpoint_step for one in outcome.reports}
    assert 10 not in saved and 11 in saved


@pytest.mark.parametrize("is_asked", [False, True], ids=["a mistake", "a stop"])
def test_a_job_that_ends_keeps_the_checkpoint_that_is_being_written(is_asked: bool, tmp_path: Path) -> None:
    has_ended, stop = threading.Event(), Stop()

    def end() -> None:
        has_ended.set()
        if is_asked:
            stop.ask()
        raise Interrupted("the pod stops") if is_asked else UserError("a mistake")

    kinds = writing_after(has_ended), sampling_third_round(end)
    outcome = run(root=tmp_path, kinds=kinds, every=2, stop=stop)
    assert outcome.error == ("the pod stops" if is_asked else "a mistake")
    newest = CheckpointStore(tmp_path / "output" / "checkpoints", keep=2).newest()
    assert newest is not None and newest.step == 2


def test_a_stop_waits_no_longer_for_a_checkpoint_than_its_limit(tmp_path: Path) -> None:
    is_over, stop = threading.Event(), Stop(grace_s=0.0)

    def end() -> None:
        stop.ask()
        raise Interrupted("the pod stops")

    outcome = run(root=tmp_path, kinds=(writing_after(is_over), sampling_third_round(end)), every=2, stop=stop)
    is_over.set()
    assert outcome.error == "the pod stops"
    assert outcome.reports[-1].checkpoint_step == 0
