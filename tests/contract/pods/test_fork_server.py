"""Workers are forks of a process that has their imports done, and notice no difference."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from longshore_runtime.cluster import worker_launcher
from longshore_runtime.cluster.deaths import ENV_FILE, Death, noted_death

LIMIT_S = 180.0
SHARED = {"RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": "7"}
SERVER = """
import json, sys
from pathlib import Path
from longshore_runtime.cluster.fork_server import ForkServer

ForkServer(Path(sys.argv[1]), ["no_such_module", "colorsys", *sys.argv[3:]]).begin(json.loads(sys.argv[2]))
"""
WORKER = """
import json, os, sys

print(json.dumps({
    "arguments": sys.argv[1:], "main": __name__, "environment": dict(os.environ), "niceness": os.nice(0),
    "imported": "colorsys" in sys.modules, "leads_group": os.getpgid(0) == os.getpid(), "pid": os.getpid(),
}), flush=True)
sys.stdin.readline()
sys.exit(int(sys.argv[1]))
"""
FORKING = """
import json, multiprocessing, os, sys

if __name__ == "__main__":
    print(json.dumps({"pid": os.getpid()}), flush=True)
    sys.stdin.readline()
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        print(json.dumps({
            "imported": pool.apply(eval, ("'colorsys' in __import__('sys').modules",)),
            "server": pool.apply(os.getppid), "colour": pool.apply(os.getenv, ("COLOUR",)),
            "group": pool.apply(os.getpgrp),
        }), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "workers"


@pytest.fixture
def server(socket_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Its lifeline is its standard input; the process that started it has ended."""
    with started(socket_path) as starter:
        yield starter


@contextlib.contextmanager
def started(socket_path: Path, *modules: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A server that imports these modules, too."""
    command = [sys.executable, "-c", SERVER, str(socket_path), json.dumps(SHARED), *modules]
    path = os.pathsep.join([str(socket_path.parent), os.environ.get("PYTHONPATH", "")])
    starter = subprocess.Popen(
        command, stdin=subprocess.PIPE, start_new_session=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert starter.wait(LIMIT_S) == 0
    try:
        yield starter
    finally:
        assert starter.stdin is not None
        starter.stdin.close()
        psutil.wait_procs(members(starter.pid), timeout=LIMIT_S)


def members(session: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session:
                found.append(process)
        except ProcessLookupError:
            continue
    return found


class Launched:
    """A worker as a raylet starts it."""

    def __init__(
        self, directory: Path, socket_path: Path, *arguments: str, text: str = WORKER, **environment: str
    ) -> None:
        program = directory / "worker.py"
        program.write_text(text)
        launcher = [sys.executable, "-I", "-S", worker_launcher.__file__, str(socket_path)]
        self.process = subprocess.Popen(
            [*launcher, str(program), *arguments, "--serialized-runtime-env-context={}", "--language=PYTHON"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **SHARED, **environment},
            preexec_fn=lambda: os.nice(5),
        )
        self.report = self._next_report()

    def go_on(self) -> dict[str, Any]:
        """Let it do what it waits to do; returns what it reports then."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return self._next_report()

    def _next_report(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        report: dict[str, Any] = json.loads(self.process.stdout.readline())
        return report

    def end(self) -> None:
        """Let the worker end, and wait for its launcher."""
        self.process.communicate(b"\n", timeout=LIMIT_S)


def test_a_worker_has_the_command_the_environment_and_the_files_of_its_launcher(
    server: "subprocess.Popen[bytes]", socket_path: Path, tmp_path: Path
) -> None:
    worker = Launched(tmp_path, socket_path, "0", "--flag=a b", COLOUR="blue")
    assert worker.report["arguments"] == ["0", "--flag=a b"]
    assert worker.report["main"] == "__main__"
    assert worker.report["environment"]["COLOUR"] == "blue"
    assert worker.report["niceness"] == os.nice(0) + 5
    assert worker.report["imported"], "the server has imported it"
    assert worker.report["leads_group"], "what a worker leaves behind is ended with its group"
    assert worker.report["pid"] != worker.process.pid
    assert worker.process.poll() is None, "the launcher lives as long as the worker"
    forked = psutil.Process(worker.report["pid"])
    worker.end()
    forked.wait(LIMIT_S)


@pytest.mark.parametrize("module", ["numpy", "longshore_runtime.backends.torch_trainer"])
def test_a_server_that_has_imported_what_computes_has_one_thread(
    module: str, socket_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    with started(socket_path, module):
        worker = Launched(tmp_path, socket_path, "0")
        assert worker.report["imported"]
        worker.end()


def test_workers_share_nothing_but_imports(
    server: "subprocess.Popen[bytes]", socket_path: Path, tmp_path: Path
) -> None:
    first = Launched(tmp_path, socket_path, "3", ONLY="first")
    second = Launched(tmp_path, socket_path, "0")
    assert "ONLY" not in second.report["environment"]
    os.kill(first.report["pid"], signal.SIGKILL)
    first.process.wait(LIMIT_S)
    assert second.process.poll() is None
    second.end()


def test_a_worker_of_another_job_or_raylet_starts_as_ray_starts_it(
    server: "subprocess.Popen[bytes]", socket_path: Path, tmp_path: Path
) -> None:
    """Ray's library has read these variables when the server imported it."""
    worker = Launched(tmp_path, socket_path, "4", RAY_JOB_ID="02000000")
    assert worker.report["pid"] == worker.process.pid
    assert worker.report["arguments"] == ["4"]
    assert not worker.report["imported"]
    worker.end()
    assert worker.process.returncode == 4


def test_without_a_server_a_worker_starts_as_ray_starts_it(socket_path: Path, tmp_path: Path) -> None:
    worker = Launched(tmp_path, socket_path, "0")
    assert worker.report["pid"] == worker.process.pid
    worker.end()


def test_a_launcher_that_is_killed_before_it_has_sent_everything_does_no_harm(
    server: "subprocess.Popen[bytes]", socket_path: Path, tmp_path: Path
) -> None:
    for sent in (b"", b"\0\0", b"\0\0\0\x09half"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(socket_path))
            connection.sendall(sent)
    worker = Launched(tmp_path, socket_path, "0")
    assert worker.report["imported"], "the server is still there"
    worker.end()


@pytest.mark.parametrize(
    "module",
    [
        'raise RuntimeError("no such device")',
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "import ctypes, pathlib\nctypes.CDLL(str(pathlib.Path(__file__).with_name('libcuda.so.1')))",
    ],
    ids=["an error", "a thread", "a GPU's driver"],
)
def test_a_worker_that_asks_while_imports_spoil_the_server_starts_as_ray_starts_it(
    module: str, socket_path: Path, tmp_path: Path
) -> None:
    shutil.copy(find_loaded("libm.so"), tmp_path / "libcuda.so.1")
    (tmp_path / "spoils.py").write_text(f"import time\ntime.sleep(1)  # A worker asks meanwhile.\n{module}\n")
    with started(socket_path, "spoils"):
        worker = Launched(tmp_path, socket_path, "0")
        assert worker.report["pid"] == worker.process.pid
        worker.end()


def find_loaded(library: str) -> str:
    """Where a library that this process has loaded lies."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if f"/{library}" in line)


def test_what_a_worker_forks_with_multiprocessing_has_the_imports_too(
    server: "subprocess.Popen[bytes]", socket_path: Path, tmp_path: Path
) -> None:
    worker = Launched(tmp_path, socket_path, text=FORKING, COLOUR="blue")
    fork = worker.go_on()
    assert fork["imported"]
    assert fork["colour"] == "blue", "it has the environment of the worker"
    assert fork["group"] == worker.report["pid"], "it is ended with the worker's group"
    server_of_the_worker = psutil.Process(fork["server"])
    worker.end()
    server_of_the_worker.wait(LIMIT_S)


def test_without_a_server_multiprocessing_starts_what_it_forks_from(
    server: "subprocess.Popen[bytes]", socket_path: Path, tmp_path: Path
) -> None:
    worker = Launched(tmp_path, socket_path, text=FORKING)
    (ours,) = (process for process in members(server.pid) if process.pid != worker.report["pid"])
    ours.kill()
    ours.wait(LIMIT_S)
    assert not worker.go_on()["imported"]
    worker.end()


def test_the_server_ends_with_the_pods_main_process_and_reaps_its_workers(
    server: "subprocess.Popen[bytes]", socket_path: Path, tmp_path: Path
) -> None:
    worker = Launched(tmp_path, socket_path, "0")
    forked = psutil.Process(worker.report["pid"])
    worker.end()
    forked.wait(LIMIT_S)  # Until it is reaped.
    (alone,) = members(server.pid)
    assert server.stdin is not None
    server.stdin.close()
    alone.wait(LIMIT_S)


def test_death_of_a_worker_is_noted_with_its_signal_and_peak_memory(
    socket_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_FILE, str(tmp_path / "deaths.jsonl"))
    with started(socket_path):
        killed, ended = (Launched(tmp_path, socket_path, "3") for _ in range(2))
        os.kill(killed.report["pid"], signal.SIGKILL)
        killed.process.communicate(timeout=LIMIT_S)
        ended.end()
        deaths = [death_soon(tmp_path / "deaths.jsonl", one.report["pid"]) for one in (killed, ended)]
    assert [death.exit_code for death in deaths] == [-signal.SIGKILL, 3]
    assert all(death.peak_bytes > 5 << 20 for death in deaths), "an interpreter takes more"
    assert str(deaths[1]).startswith("exited with code 3 after using 0.")


def death_soon(file: Path, pid: int) -> Death:
    """The server may reap a worker after its launcher has ended."""
    while (death := noted_death(file, pid)) is None:
        pass
    return death
