"""Files of steps: one per step, whole or not there, and no more than allowed."""

import os
from pathlib import Path

import pytest

from longshore_runtime.telemetry import record_files
from longshore_runtime.telemetry.record_files import StepFiles


@pytest.fixture
def files(tmp_path: Path) -> StepFiles:
    return StepFiles(tmp_path / "samples", "step-", ".parquet", max_bytes=30)


def there(tmp_path: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((tmp_path / "samples").iterdir())}


def test_a_step_that_is_repeated_replaces_its_file(files: StepFiles, tmp_path: Path) -> None:
    files.write(1, b"old")
    files.write(1, b"new")
    assert there(tmp_path) == {"step-000001.parquet": b"new"}


def test_the_oldest_steps_make_room(files: StepFiles, tmp_path: Path) -> None:
    for step in range(1, 5):
        files.write(step, b"0123456789")
    assert list(there(tmp_path)) == [f"step-00000{step}.parquet" for step in (2, 3, 4)]
    files.write(4, b"0123456789" * 2)
    assert list(there(tmp_path)) == ["step-000003.parquet", "step-000004.parquet"], "its old file does not count"


def test_a_file_that_is_larger_than_all_may_be_is_refused_and_the_others_stay(files: StepFiles, tmp_path: Path) -> None:
    files.write(1, b"0123456789")
    with pytest.raises(ValueError, match=r"^the record of step 2 has 31 bytes, more than 30 bytes for all$"):
        files.write(2, b"x" * 31)
    assert list(there(tmp_path)) == ["step-000001.parquet"]


def test_a_run_that_continues_forgets_later_steps_and_what_was_not_finished(files: StepFiles, tmp_path: Path) -> None:
    files.rewind(0)  # There is no directory yet.
    for step in (1, 2, 3):
        files.write(step, b"a")
    (tmp_path / "samples" / ".step-000004.parquet").write_bytes(b"ha")
    (tmp_path / "samples" / "notes.txt").write_bytes(b"mine")
    files.rewind(2)
    assert list(there(tmp_path)) == ["notes.txt", "step-000001.parquet", "step-000002.parquet"]
    files.rewind(0)
    assert list(there(tmp_path)) == ["notes.txt"]


def test_steps_past_a_million_are_newer_than_those_before(files: StepFiles, tmp_path: Path) -> None:
    files.write(1_000_000, b"0123456789")
    files.write(999_999, b"0123456789")
    files.write(1_000_001, b"0123456789" * 2)
    assert list(there(tmp_path)) == ["step-1000000.parquet", "step-1000001.parquet"]


def test_a_write_that_fails_leaves_the_file_of_before(files: StepFiles, tmp_path: Path) -> None:
    files.write(1, b"old")
    (tmp_path / "samples" / f".step-000001.parquet.{os.getpid()}").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write(1, b"new")
    assert (tmp_path / "samples" / "step-000001.parquet").read_bytes() == b"old"


def test_the_last_of_a_volume_is_left_to_checkpoints(
    files: StepFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(1, b"0123456789")
    monkeypatch.setattr(record_files.shutil, "disk_usage", lambda directory: (1_000, 940, 60))
    files.write(2, b"0123456789")
    with pytest.raises(OSError, match=r"^the volume is nearly full \(60 bytes are free\)"):
        files.write(3, b"0123456789 ")
    assert list(there(tmp_path)) == ["step-000001.parquet", "step-000002.parquet"]
