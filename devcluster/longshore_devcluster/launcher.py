"""Starts, finds and stops embedded clusters that run as processes of their own."""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from longshore_devcluster.cluster import ClusterConfig, remove_run_dirs

_LOCK_FILE = "cluster.lock"
_LOG_FILE = "cluster.log"
_STOP_S = 60.0
_START_S = 120.0
_LOG_TAIL_LINES = 20


class LaunchError(Exception):
    """The cluster cannot be started or stopped; the message says why and what to do."""


@dataclass(frozen=True)
class RunningCluster:
    """A cluster that runs now: its process, where it serves and how to reach it."""

    pid: int
    url: str
    kubeconfig: Path


class DataDirLock:
    """The right to serve a data directory. The system takes it back whenever and however the holder ends."""

    def __init__(self, data_dir: Path) -> None:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = (data_dir / _LOCK_FILE).open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise LaunchError(f"a cluster already runs on {data_dir}: use it, or stop it with `down`") from None

    def announce(self, url: str, kubeconfig: Path) -> None:
        """Let others find the cluster."""
        self._file.truncate(0)
        json.dump({"pid": os.getpid(), "url": url, "kubeconfig": str(kubeconfig)}, self._file)
        self._file.flush()

    def release(self) -> None:
        """Give the right back."""
        self._file.truncate(0)
        self._file.close()


def find(data_dir: Path) -> RunningCluster | None:
    """Return the cluster that runs on a data directory and has become ready, or None."""
    path = data_dir / _LOCK_FILE
    if not path.exists():
        return None
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read()
        else:
            return None
    if not text:
        return None
    found = json.loads(text)
    return RunningCluster(found["pid"], found["url"], Path(found["kubeconfig"]))


def stop(data_dir: Path) -> bool:
    """Stop the cluster of a data directory and wait until it has ended; false when none runs.

    Raises:
        LaunchError: it does not end.
    """
    running = find(data_dir)
    if running is None:
        return False
    try:
        handle = os.pidfd_open(running.pid)
        signal.pidfd_send_signal(handle, signal.SIGTERM)
    except ProcessLookupError:
        return True
    try:
        ended, _, _ = select.select([handle], [], [], _STOP_S)
    finally:
        os.close(handle)
    if not ended:
        raise LaunchError(f"process {running.pid} has not ended within {_STOP_S:g} s of the request to stop: kill it")
    return True


def start_detached(data_dir: Path, config: ClusterConfig) -> RunningCluster:
    """Start a cluster that outlives this process; returns when it serves and its nodes are Ready.

    Raises:
        LaunchError: it did not start; with the end of its log.
    """
    log = data_dir / _LOG_FILE
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with log.open("w") as log_file:
        process, ready = _spawn(data_dir, config, log_file, stdin=subprocess.DEVNULL)
    _wait_ready(process, ready, log)
    running = find(data_dir)
    assert running is not None
    return running


@contextmanager
def cluster_process(
    data_dir: Path, config: ClusterConfig | None = None, *, keep_volumes: bool = False
) -> Iterator[RunningCluster]:
    """Run a cluster in a process of its own for the length of a block; it ends with this process at the latest.

    With `keep_volumes` a later cluster on the same data finds the scratch volumes of its pods again.

    Raises:
        LaunchError: it did not start; with the end of its log.
    """
    log = data_dir / _LOG_FILE
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with log.open("w") as log_file:
        process, ready = _spawn(data_dir, config or ClusterConfig(), log_file, stdin=subprocess.PIPE)
    try:
        _wait_ready(process, ready, log)
        running = find(data_dir)
        assert running is not None
        yield running
    finally:
        # The cluster stops when its standard input ends, also when it is the system that closes it for us.
        process.communicate(timeout=_STOP_S)
        if not keep_volumes:
            remove_run_dirs(data_dir)


def _spawn(
    data_dir: Path, config: ClusterConfig, log: IO[str], stdin: int
) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    read_end, write_end = os.pipe()
    arguments = [sys.executable, "-m", "longshore_devcluster", "up", "--data-dir", str(data_dir)]
    arguments += [f"--{name.replace('_', '-')}={value}" for name, value in asdict(config).items()]
    arguments += ["--ready-fd", str(write_end)]
    if stdin == subprocess.PIPE:
        arguments.append("--until-stdin-closes")
    process = subprocess.Popen(
        arguments, stdin=stdin, stdout=log, stderr=log, pass_fds=(write_end,), start_new_session=True
    )
    os.close(write_end)
    return process, os.fdopen(read_end, "rb")


def _wait_ready(process: "subprocess.Popen[bytes]", ready: IO[bytes], log: Path) -> None:
    with ready:
        answered, _, _ = select.select([ready], [], [], _START_S)
        if answered and ready.read(1):
            return
    if not answered:
        process.kill()
    process.wait()
    tail = "\n".join(log.read_text().splitlines()[-_LOG_TAIL_LINES:])
    raise LaunchError(f"the cluster did not start; the end of {log}:\n{tail}")
