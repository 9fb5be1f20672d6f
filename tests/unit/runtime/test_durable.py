"""A full disk is reported with its path and figures, wherever it is found."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from longshore_runtime.checkpoints.model_export import ModelExport
from longshore_runtime.checkpoints.store import CheckpointStore
from longshore_runtime.errors import UserError
from longshore_runtime.process import durable
from longshore_runtime.process.durable import apply_umask, is_no_room, is_volume_full, no_room, tree_bytes
from longshore_runtime.process.logs import _Lines
from longshore_runtime.session.session import mistake_of
from tests.checkpoints import write_checkpoint

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Wrapped(Exception):
    """As Ray wraps what a remote call raised."""

    def __init__(self, cause: Exception | None, text: str = "remote call failed") -> None:
        super().__init__(text)
        self.cause = cause


def raised_from(error: Exception) -> Exception:
    outer = ValueError("outer")
    outer.__cause__ = error
    return outer


TORCH = (
    "PytorchStreamWriter failed writing file data/0: file write failed",
    "[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534",
)
"""What `torch.save` raises on a full disk, by where it met the end."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FULL, True),
        (OSError(errno.EDQUOT, "quota"), True),
        (Wrapped(FULL), True),
        (raised_from(Wrapped(FULL)), True),
        (Wrapped(None, "SafetensorError: I/O error: No space left on device (os error 28)"), True),
        (OSError(errno.EACCES, "denied"), False),
        *((RuntimeError(text), False) for text in TORCH),
    ],
)
def test_a_full_disk_is_known_behind_every_wrapping(tmp_path: Path, error: Exception, expected: bool) -> None:
    assert is_no_room(error, tmp_path) is expected


@pytest.mark.parametrize("text", TORCH)
def test_a_writer_that_does_not_say_why_is_believed_by_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(durable, "free_bytes", lambda _: 0)
    assert is_no_room(RuntimeError(text), tmp_path)


@pytest.mark.parametrize(
    ("error", "num_free_bytes", "expected"),
    [
        (OSError(errno.ENOSPC, "full", "{volume}/rljobs/a/metrics.jsonl"), 1 << 40, True),
        (OSError(errno.ENOSPC, "full", "/tmp/scratch/ray/spilled"), 0, False),
        (raised_from(Wrapped(OSError(errno.ENOSPC, "full", "/dev/shm/weights"))), 0, False),
        (Wrapped(None, "OSError: [Errno 28] No space left on device: '{volume}/rljobs/a'"), 1 << 40, True),
        (OSError(errno.ENOSPC, "inotify watch limit reached"), 1 << 40, False),
        (FULL, 0, True),
        (OSError(errno.EDQUOT, "quota"), 1 << 40, True),
        (RuntimeError(TORCH[0]), 0, True),
        (OSError(errno.EACCES, "denied", "{volume}/a"), 0, False),
    ],
)
def test_a_full_disk_is_the_users_if_it_is_the_volume_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, num_free_bytes: int, expected: bool
) -> None:
    """Scratch space and shared memory are the node's, where other tenants write."""
    monkeypatch.setattr(durable, "free_bytes", lambda _: num_free_bytes)
    if isinstance(error, OSError) and error.filename is not None:
        error = OSError(error.errno, error.strerror, error.filename.format(volume=tmp_path))
    if isinstance(error, Wrapped):
        error = Wrapped(error.cause, str(error).format(volume=tmp_path)) if error.cause is None else error
    assert is_volume_full(error, tmp_path) is expected
    if not isinstance(error, Wrapped):
        assert (mistake_of(error, tmp_path) is not None) is expected


def test_the_sentence_names_path_needed_and_free_bytes_and_what_to_do(tmp_path: Path) -> None:
    message = no_room(tmp_path / "not" / "there", 12_345_678)
    assert message.startswith(f"storage: the volume is full: {tmp_path}/not/there needs 12,345,678 bytes, and ")
    assert " bytes are free; enlarge the volume, delete old outputs in it, or lower checkpoint.keep" in message


def fail(directory: Path) -> None:
    (directory / "weights").write_bytes(b"half")
    raise Wrapped(FULL)


def write(directory: Path) -> None:
    (directory / "weights").write_bytes(b"x" * 1000)


def test_a_checkpoint_without_room_is_reported_in_one_sentence_and_leaves_the_older(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    write_checkpoint(store, 1, {}, {}, write)
    needed_bytes = tree_bytes(tmp_path / "step-000001")
    assert needed_bytes > 1000
    with pytest.raises(UserError, match=rf"the volume is full: {tmp_path}/step-000002 needs {needed_bytes:,} bytes"):
        write_checkpoint(store, 2, {}, {}, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_what_the_last_checkpoint_took_is_asked_for_before_the_next_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    write_checkpoint(store, 1, {}, {}, write)
    monkeypatch.setattr("longshore_runtime.checkpoints.store.free_bytes", lambda _: 999)
    with pytest.raises(UserError, match="the volume is full"):
        write_checkpoint(store, 2, {}, {}, lambda _: pytest.fail("it must not begin"))


def test_a_model_for_which_there_is_no_room_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = write_checkpoint(CheckpointStore(tmp_path / "checkpoints", keep=2), 1, {}, {}, write)

    def full(*_: object, **__: object) -> None:
        raise FULL

    monkeypatch.setattr("longshore_runtime.checkpoints.model_export.shutil.copytree", full)
    with pytest.raises(UserError, match=f"the volume is full: {tmp_path}/final cannot be written"):
        ModelExport().write(checkpoint, tmp_path / "final")


@pytest.fixture
def full_device() -> Callable[[], object]:
    return lambda: Path("/dev/full").open("a", encoding="utf-8", buffering=1)


def test_a_log_that_cannot_be_copied_goes_on_where_it_can(
    full_device: Callable[[], object], capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    lines = _Lines([sys.stderr, full_device()])  # type: ignore[list-item]  # An open file.
    lines.msg("first")
    lines.msg("second http://user:s3cret@grader")
    message = capsys.readouterr().err
    assert message.splitlines() == [
        "first",
        "the log is no longer copied to /dev/full: [Errno 28] No space left on device",
        "second http://grader",
    ]


@pytest.mark.parametrize(("mask", "modes"), [(0o022, (0o2755, 0o644, 0o744)), (0o007, (0o2770, 0o660, 0o760))])
def test_files_and_directories_obey_the_umask_alike(tmp_path: Path, mask: int, modes: tuple[int, int, int]) -> None:
    root = tmp_path / "trainer"
    root.mkdir()
    root.chmod(0o2700)  # As on a volume whose files belong to a group.
    save_file({"weight": np.zeros(2, np.float32)}, root / "model.safetensors")
    (root / "program.sh").touch(0o700)
    before = os.umask(mask)
    try:
        apply_umask(root)
    finally:
        os.umask(before)
    found = (root, root / "model.safetensors", root / "program.sh")
    assert tuple(path.stat().st_mode & 0o7777 for path in found) == modes
