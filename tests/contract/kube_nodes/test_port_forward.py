"""`kubectl port-forward`: local connections reach a port of a pod."""

import os
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.contract.kube_nodes.kube import Kubectl

ECHO = """
if command -v python3 >/dev/null; then exec python3 -c '
import os, socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while block := self.request.recv(65536):
            self.request.sendall(block)
socketserver.ThreadingTCPServer((os.environ["IP"], 8000), Echo).serve_forever()
'; else exec nc -ll -p 8000 -e cat; fi
"""
SIZE_BYTES = 1 << 20


@pytest.fixture
def echo(kubectl: Kubectl) -> str:
    """A pod that sends back what it gets on port 8000."""
    address = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    kubectl.apply(kubectl.pod("echo", ECHO, c_env=[address], c_readinessProbe=probe))
    kubectl.wait_ready("pod/echo")
    return "pod/echo"


@contextmanager
def forwarded(kubectl: Kubectl, target: str, port: int) -> Iterator[tuple[int, "list[str]"]]:
    """The local port, and what kubectl says on standard error once it has ended."""
    process = kubectl.start("port-forward", target, f":{port}")
    said: list[str] = []
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(rf"Forwarding from 127\.0\.0\.1:(\d+) -> {port}\n", line)
        assert found, line + process.communicate(timeout=120)[1]
        yield int(found[1]), said
    finally:
        process.terminate()
        said.append(process.communicate(timeout=120)[1])


def exchange(port: int, data: bytes) -> bytes:
    """What comes back for `data`, after which our side of the connection is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection, ThreadPoolExecutor(1) as sender:
        sent = sender.submit(_send, connection, data)
        received = bytearray()
        while block := connection.recv(65536):
            received += block
        sent.result()
        return bytes(received)


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def test_bytes_reach_the_pod_and_come_back_on_many_connections(kubectl: Kubectl, echo: str) -> None:
    messages = [os.urandom(SIZE_BYTES) for _ in range(4)]
    with forwarded(kubectl, echo, 8000) as (port, _), ThreadPoolExecutor(len(messages)) as clients:
        answers = list(clients.map(lambda message: exchange(port, message), messages))
        assert [len(answer) for answer in answers] == [SIZE_BYTES] * len(messages)
        assert answers == messages
        assert exchange(port, b"again") == b"again"


def test_a_client_that_leaves_in_the_middle_leaves_the_others_alone(kubectl: Kubectl, echo: str) -> None:
    with forwarded(kubectl, echo, 8000) as (port, _):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as leaver:
            leaver.sendall(b"x" * SIZE_BYTES)
        assert exchange(port, b"still here") == b"still here"


def test_a_port_on_which_nothing_listens_is_an_error_with_its_number(kubectl: Kubectl, echo: str) -> None:
    with forwarded(kubectl, echo, 8001) as (port, said):  # noqa: SIM117 - what it said is known when it has ended
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            assert connection.recv(1) == b""
    assert f"an error occurred forwarding {port} -> 8001: error forwarding port 8001 to pod" in said[0]


def test_a_service_is_forwarded_to_one_of_its_pods(kubectl: Kubectl, echo: str) -> None:
    kubectl("label", "pod/echo", "app=echo")
    port = {"port": 80, "targetPort": 8000}
    spec = {"selector": {"app": "echo"}, "ports": [port]}
    kubectl.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "echo"}, "spec": spec})
    process = kubectl.start("port-forward", "service/echo", ":80")
    try:
        assert process.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+) -> 8000", process.stdout.readline())
        assert found
        assert exchange(int(found[1]), b"by name") == b"by name"
    finally:
        process.terminate()
        process.communicate(timeout=120)


def test_a_pod_without_a_node_has_no_ports(kubectl: Kubectl) -> None:
    kubectl.apply(kubectl.pod("p", "true", schedulerName="nobody"))
    refused = kubectl.attempt("port-forward", "pod/p", ":8000")
    assert refused.returncode == 1 and "pod is not running" in refused.stderr
