"""Processes and directories of episodes leave nothing behind."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from longshore_runtime.environments.processes import (
    EpisodeProcess,
    agent_directory,
    remove_directory,
    remove_left_directories,
)
from longshore_runtime.rewards.fork_server import Fork, new_pipes

PATIENT_S: Final = 60.0
NOBODY: Final = 65534


def pausing() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)


def opened(file: int) -> str | None:
    """Return what a descriptor has open, None if nothing; another thread may have been given its number."""
    link = Path("/proc/self/fd", str(file))
    return str(link.readlink()) if link.is_symlink() else None


async def test_a_process_whose_pipes_cannot_be_connected_leaves_nothing(tmp_path: Path) -> None:
    with new_pipes() as (ours, _):
        process = pausing()
    os.close(ours.replies)
    no_pipe = os.open(tmp_path / "file", os.O_CREAT | os.O_RDONLY)
    fork = Fork(process.pid, os.pidfd_open(process.pid), ours._replace(replies=no_pipe))
    files = {file: opened(file) for file in (fork.handle, *fork.pipes)}
    with pytest.raises(ValueError, match="Pipe transport is"):
        await EpisodeProcess.connect(fork, lambda: None)
    assert process.wait(PATIENT_S) == -signal.SIGKILL
    await asyncio.sleep(0)  # Transports close their files in the next turn of the loop.
    assert [file for file, before in files.items() if opened(file) == before] == []


def fill(directory: Path) -> None:
    inner = directory / "inner"
    inner.mkdir(parents=True)
    (inner / "file").touch()


def make_read_only(directory: Path) -> None:
    fill(directory)
    (directory / "inner").chmod(0o500)


def make_unreadable(directory: Path) -> None:
    fill(directory)
    (directory / "inner").chmod(0)
    directory.chmod(0)


def replace_by_link(directory: Path) -> None:
    outside = directory.parent / "outside"
    fill(outside)
    outside.chmod(0o500)
    directory.symlink_to(outside)


def link_inside(directory: Path) -> None:
    fill(directory)
    outside = directory.parent / "outside"
    fill(outside)
    outside.chmod(0o500)
    (directory / "link").symlink_to(outside)


@pytest.mark.parametrize(
    "make", [make_read_only, make_unreadable, replace_by_link, link_inside, Path.touch, Path.exists]
)
def test_whatever_an_agent_makes_of_its_directory_is_removed(make: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent, "directory")
        if (pid := os.fork()) == 0:  # As somebody to whom permissions apply.
            try:
                if os.geteuid() == 0:
                    os.chown(parent, NOBODY, NOBODY)
                    os.setuid(NOBODY)
                make(directory)
                remove_directory(directory)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert not os.path.lexists(directory)
        if (outside := Path(parent, "outside")).exists():
            assert (outside / "inner" / "file").exists() and outside.stat().st_mode & 0o777 == 0o500
            outside.chmod(0o700)


def test_directories_of_agents_of_an_ended_pod_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (ended.pid, os.getpid()):
        fill(agent_directory(pid))
    remove_left_directories()
    assert list(tmp_path.iterdir()) == [agent_directory(os.getpid())]
