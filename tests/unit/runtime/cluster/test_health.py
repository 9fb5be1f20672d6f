"""What probes and Prometheus see of a pod."""

from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from benchmarks.measured_process import free_port
from prometheus_client import CollectorRegistry, Gauge

from longshore_runtime.cluster.health import HealthServer

HOST = "127.0.0.1"


@pytest.fixture
def port() -> int:
    """A free port."""
    return free_port()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def server(port: int, registry: CollectorRegistry) -> Iterator[HealthServer]:
    with HealthServer(HOST, registry, port) as server:
        yield server


def get(port: int, path: str) -> tuple[int, str]:
    """Status and body of an answer."""
    try:
        with urlopen(f"http://{HOST}:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_a_pod_is_ready_when_it_says_so(server: HealthServer, port: int) -> None:
    assert get(port, "/readyz")[0] == 503
    server.ready()
    assert get(port, "/readyz")[0] == 200
    server.not_ready()
    assert get(port, "/readyz")[0] == 503


def test_metrics_are_those_of_the_given_registry(server: HealthServer, port: int, registry: CollectorRegistry) -> None:
    Gauge("longshore_test", "A value", registry=registry).set(42)
    status, body = get(port, "/metrics")
    assert status == 200
    assert "longshore_test 42.0" in body


def test_the_port_is_free_again_afterwards(port: int, registry: CollectorRegistry) -> None:
    for _ in range(2):
        with HealthServer(HOST, registry, port) as server:
            server.ready()
            assert get(port, "/readyz")[0] == 200
