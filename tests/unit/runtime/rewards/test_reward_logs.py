"""Logs of reward pods are copied into the storage, whatever the pods send."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from longshore.api.reward import RewardFunction, RewardKind
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.transports import pod_logs
from longshore_runtime.rewards.transports.pod_logs import PodLogs
from tests.unit.runtime.reward_servers import Pods

MATHS = RewardFunction(name="maths", kind=RewardKind.MATHS)
LIMIT_S = 60.0


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    pods = Pods(tmp_path, factory=ScorerFactory((MATHS,), "output"))
    pods.places(1)
    yield pods
    pods.close()


def copied(pods: Pods, num_pods: int = 1) -> Path:
    """The directory of the logs, after one more copy."""
    directory = pods.directory / "logs"
    logs = PodLogs(pods.serving(num_pods), directory, 3)
    logs.close(LIMIT_S)
    return directory


def write(pods: Pods, index: int, data: bytes) -> None:
    pods.servers[index]._captured.add(data)


def test_logs_are_appended_to_a_file_for_each_pod_and_attempt(pods: Pods) -> None:
    pods.join(0)
    pods.join(2)
    write(pods, 0, b"one\n")
    write(pods, 2, "Grüße\n".encode())
    copied(pods, 3)
    write(pods, 0, b"two\n")
    directory = copied(pods, 3)
    assert {path.name: path.read_text() for path in directory.iterdir()} == {
        "reward-0-3.log": "one\ntwo\n",
        "reward-2-3.log": "Grüße\n",
    }


def test_log_of_a_pod_does_nothing_to_a_terminal_and_reveals_no_password(pods: Pods) -> None:
    pods.join(0)
    write(pods, 0, b"\x1b]0;owned\x07\thttp://user:secret@judge/\xff\n")
    text = (copied(pods) / "reward-0-3.log").read_text()
    assert text == "\ufffd]0;owned\ufffd\thttp://judge/\ufffd\n"


def test_two_files_of_bounded_size_are_kept_of_a_pod(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "_MAX_FILE_BYTES", 8)
    pods.join(0)
    for line in (b"first\n", b"second\n", b"third\n"):
        write(pods, 0, line)
        directory = copied(pods)
    assert {path.name: path.read_text() for path in directory.iterdir()} == {
        "reward-0-3.log": "third\n",
        "reward-0-3.old.log": "second\n",
    }


def test_pod_that_sends_without_end_is_cut_off(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "_MAX_ANSWER_BYTES", 4)
    pods.join(0)
    write(pods, 0, b"12345678\n")
    assert (copied(pods) / "reward-0-3.log").read_text() == "1234"


def test_pods_that_refuse_the_token_or_are_away_have_no_log(pods: Pods) -> None:
    pods.join(0)
    write(pods, 0, b"one\n")
    (pods.directory / "token").write_text("wrong\n")
    assert not copied(pods, 2).exists()


@contextmanager
def trickling(host: str, port: int) -> Iterator[None]:
    """A pod whose headers have no end, of which it sends a little again and again."""
    end = threading.Event()

    def trickle() -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not end.wait(0.1):
                connection.sendall(b"x")

    with socket.create_server((host, port)) as server:
        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()


def test_pod_that_trickles_its_headers_stalls_no_other_log(pods: Pods) -> None:
    pods.join(1)
    write(pods, 1, b"one\n")
    with trickling(pods._address(0), pods.port):
        logs = PodLogs(replace(pods.serving(2), address_of=pods._address), pods.directory / "logs", 3)
        logs.close(LIMIT_S)
        assert not logs._thread.is_alive()
    assert (pods.directory / "logs" / "reward-1-3.log").read_text() == "one\n"
