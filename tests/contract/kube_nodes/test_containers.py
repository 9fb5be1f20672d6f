"""A container is ended as a whole: whatever its processes did to get away from it."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from longshore_devcluster.kubelet.containers import KILLED, ContainerProcess, Spec
from longshore_devcluster.kubelet.leftovers import marked_processes
from longshore_devcluster.kubelet.logs import LogOptions, LogWatch, read_log

MARK = "DEVCLUSTER_POD_UID"


def spec(tmp_path: Path, script: str, **env: str) -> Spec:
    environment = {"PATH": os.environ["PATH"], MARK: str(tmp_path), **env}
    return Spec(["sh", "-c", script], environment, str(tmp_path), log=str(tmp_path / "log"))


async def log_text(tmp_path: Path, **options: object) -> str:
    blocks = [block async for block in read_log(tmp_path / "log", LogOptions(**options), None)]  # type: ignore[arg-type]
    return b"".join(blocks).decode()


async def next_line(process: ContainerProcess, tmp_path: Path, watch: LogWatch) -> str:
    async for block in read_log(tmp_path / "log", LogOptions(follow=True), watch):
        return block.decode()
    raise AssertionError("the container ended without a line")


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
async def test_exit_code_is_that_of_the_main_process_or_128_plus_its_signal(
    tmp_path: Path, script: str, code: int
) -> None:
    process = await ContainerProcess.start(spec(tmp_path, script))

    assert await process.wait() == code


async def test_both_output_streams_are_logged_with_unfinished_last_line(tmp_path: Path) -> None:
    process = await ContainerProcess.start(spec(tmp_path, "echo one; echo two >&2; printf three"))
    await process.wait()

    assert sorted((await log_text(tmp_path)).splitlines()) == ["one", "three", "two"]


async def test_kill_ends_processes_that_ignore_sigterm_and_have_groups_of_their_own(tmp_path: Path) -> None:
    watch = LogWatch()
    script = "trap '' TERM; setsid sh -c \"trap '' TERM; sleep 1000\" & set -m; sleep 1000 & echo ready; wait; wait"
    process = await ContainerProcess.start(spec(tmp_path, script), watch.changed.notify)
    await next_line(process, tmp_path, watch)
    await asyncio.to_thread(until_marked, str(tmp_path), 3)

    process.kill()

    assert await process.wait() == KILLED
    assert marked_processes(str(tmp_path)) == []


def until_marked(mark: str, count: int) -> None:
    """Wait for so many processes: one that is between `fork` and `exec` shows no mark."""
    deadline_s = time.monotonic() + 60
    while len(marked_processes(mark)) < count:
        assert time.monotonic() < deadline_s, f"fewer than {count} processes have the mark"
        time.sleep(0.01)


async def test_no_zombie_is_left(tmp_path: Path) -> None:
    process = await ContainerProcess.start(spec(tmp_path, "for i in 1 2 3; do sh -c 'sleep 0 &' & done; wait"))
    await process.wait()

    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
