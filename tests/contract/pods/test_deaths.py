"""What a pod notes about its processes that have ended."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from longshore_runtime.cluster.deaths import Death, num_oom_kills

REAP = """
import os, pathlib, signal, sys
from longshore_runtime.cluster.deaths import DeathNotes
notes = DeathNotes(sys.argv[1], [sys.argv[2]])
for count in (1, 1):
    child = os.fork()
    if child == 0:
        signal.pause()
    os.kill(child, signal.SIGKILL)
    pathlib.Path(sys.argv[2]).write_text(f"oom_kill {count}\\n")
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    notes.reap()
"""


def test_killed_process_is_out_of_memory_if_the_kernel_has_counted_one_more(tmp_path: Path) -> None:
    counts, file = tmp_path / "memory.events", tmp_path / "deaths.jsonl"
    counts.write_text("oom_kill 0\n")
    # In a process of its own, because it reaps all children.
    subprocess.run([sys.executable, "-c", REAP, str(file), str(counts)], check=True, timeout=60)
    deaths = [Death(**json.loads(line)) for line in file.read_text().splitlines()]
    assert [death.is_out_of_memory for death in deaths] == [True, False]
    assert [death.is_lack_of_memory(9 << 30) for death in deaths] == [True, False], "its own memory was small"


REAP_TWO = """
import os, pathlib, signal, sys
from longshore_runtime.cluster.deaths import DeathNotes
notes = DeathNotes(sys.argv[1], [sys.argv[2]])
children = [os.fork() or signal.pause() for _ in range(2)]
pathlib.Path(sys.argv[2]).write_text("oom_kill 2\\n")
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
notes.reap()
"""


def test_two_kills_that_are_seen_at_once_explain_two_deaths(tmp_path: Path) -> None:
    counts, file = tmp_path / "memory.events", tmp_path / "deaths.jsonl"
    counts.write_text("oom_kill 0\n")
    subprocess.run([sys.executable, "-c", REAP_TWO, str(file), str(counts)], check=True, timeout=60)
    assert [json.loads(line)["is_out_of_memory"] for line in file.read_text().splitlines()] == [True, True]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("low 0\nhigh 0\nmax 312\noom 4\noom_kill 3\noom_group_kill 0\n", 3),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\n", 0),
    ],
    ids=["version 2", "version 1", "old kernel"],
)
def test_kills_are_counted_in_the_control_group_of_either_version(text: str, count: int, tmp_path: Path) -> None:
    (tmp_path / "counts").write_text(text)
    assert num_oom_kills([str(tmp_path / "missing"), str(tmp_path / "counts")]) == count
    assert num_oom_kills([str(tmp_path / "missing")]) == 0


def test_other_signals_are_no_lack_of_memory_however_large_the_process_was() -> None:
    assert not Death(7, -signal.SIGSEGV, 9 << 30).is_lack_of_memory(9 << 30)
