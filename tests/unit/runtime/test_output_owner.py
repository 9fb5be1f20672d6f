"""Two jobs with one output, of which only one may write."""

import itertools
import shutil
from pathlib import Path

import pytest

from longshore_runtime.checkpoints.model_export import ModelExport
from longshore_runtime.checkpoints.store import CheckpointStore
from longshore_runtime.errors import Interrupted, UserError
from longshore_runtime.session.output_owner import OutputOwner
from tests.checkpoints import write_checkpoint

FIRST = OutputOwner("first", "uid-1", 1)
SECOND = OutputOwner("second", "uid-2", 1)


def store(owner: OutputOwner, output: Path) -> CheckpointStore:
    return CheckpointStore(output / "checkpoints", 2, lambda: owner.require_own(output))


def save(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"weights")


def test_of_two_jobs_with_one_output_the_later_one_writes(tmp_path: Path) -> None:
    """Neither takes the checkpoint of the other for its own."""
    first, second = store(FIRST, tmp_path), store(SECOND, tmp_path)
    FIRST.take(tmp_path)
    write_checkpoint(first, 10, {"job": "first"}, {}, save)
    SECOND.take(tmp_path)
    with pytest.raises(UserError, match=r"^storage\.output: job second has begun to write here, too"):
        write_checkpoint(first, 20, {"job": "first"}, {}, save)
    assert write_checkpoint(second, 20, {"job": "second"}, {}, save).state() == {"job": "second"}


def test_an_attempt_of_a_job_that_lost_its_output_does_not_take_it_back(tmp_path: Path) -> None:
    """A node of the first job was drained, and the second one goes on."""
    FIRST.take(tmp_path)
    SECOND.take(tmp_path)
    with pytest.raises(UserError, match="job second has begun to write here"):
        OutputOwner("first", "uid-1", 2).take(tmp_path)
    OutputOwner("second", "uid-2", 2).take(tmp_path)
    with pytest.raises(UserError, match="job second has begun to write here"):
        OutputOwner("first", "uid-1", 3).take(tmp_path)
    third = OutputOwner("third", "uid-3", 1)
    third.take(tmp_path)
    assert write_checkpoint(store(third, tmp_path), 1, {}, {}, save).step == 1


def test_an_attempt_that_begins_late_does_not_end_the_one_after_it(tmp_path: Path) -> None:
    OutputOwner("first", "uid-1", 2).take(tmp_path)
    with pytest.raises(Interrupted, match="attempt 2"):
        FIRST.take(tmp_path)


def test_a_job_whose_unfinished_checkpoint_another_one_removes_fails_with_the_reason(tmp_path: Path) -> None:
    def overtaken(directory: Path) -> None:
        save(directory)
        SECOND.take(tmp_path)
        write_checkpoint(store(SECOND, tmp_path), 10, {"job": "second"}, {}, save)

    FIRST.take(tmp_path)
    with pytest.raises(UserError, match="job second has begun to write here"):
        write_checkpoint(store(FIRST, tmp_path), 20, {"job": "first"}, {}, overtaken)
    newest = store(SECOND, tmp_path).newest()
    assert newest is not None and newest.state() == {"job": "second"}


def test_a_job_that_lost_its_output_leaves_the_checkpoint_of_the_new_owner_alone(tmp_path: Path) -> None:
    begun: list[Path] = []

    def overtaken(directory: Path) -> None:
        """The other one is at the same step: it removes what is unfinished, and begins."""
        SECOND.take(tmp_path)
        shutil.rmtree(directory.parent)
        directory.mkdir(parents=True)
        save(directory)
        begun.append(directory)
        raise FileNotFoundError("a file of this checkpoint is gone")

    FIRST.take(tmp_path)
    with pytest.raises(UserError, match="job second has begun to write here"):
        write_checkpoint(store(FIRST, tmp_path), 10, {}, {}, overtaken)
    assert [path.name for path in begun[0].iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("num_calls", [0, 1])
def test_a_job_that_has_lost_its_output_writes_no_final_model(num_calls: int, tmp_path: Path) -> None:
    """Before it is copied, or before it gets its name."""
    FIRST.take(tmp_path)
    first, calls = store(FIRST, tmp_path), itertools.count()
    checkpoint = write_checkpoint(first, 10, {}, {}, save)

    def require_own() -> None:
        if next(calls) == num_calls:
            SECOND.take(tmp_path)
        first.require_own()

    with pytest.raises(UserError, match="job second has begun to write here"):
        ModelExport().write(checkpoint, tmp_path / "model", require_own)
    assert not (tmp_path / "model").exists()


def test_a_coordinator_whose_job_has_a_later_attempt_ends_without_blaming_its_user(tmp_path: Path) -> None:
    FIRST.take(tmp_path)
    OutputOwner("first", "uid-1", 2).take(tmp_path)
    with pytest.raises(Interrupted, match="attempt 2"):
        write_checkpoint(store(FIRST, tmp_path), 10, {}, {}, save)


@pytest.mark.parametrize("content", [None, b"", b"[1]", b"{"])
def test_a_file_that_is_not_there_or_says_nothing_stops_no_job(content: bytes | None, tmp_path: Path) -> None:
    FIRST.take(tmp_path)
    (tmp_path / "coordinator.json").unlink()
    if content is not None:
        (tmp_path / "coordinator.json").write_bytes(content)
    assert write_checkpoint(store(FIRST, tmp_path), 10, {}, {}, save).step == 10
