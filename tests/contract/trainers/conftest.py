import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore_runtime.backends.tiny_model import build_tiny_model
from tests.contract.trainers.ranks import stop_kept_ranks
from tests.contract.trainers.replicas import Kind


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in tiny model, untrained."""
    directory = tmp_path_factory.mktemp("model")
    build_tiny_model(directory, seed=0)
    return directory


@pytest.fixture(params=["fake", "torch", "megatron"])
def kind(request: pytest.FixtureRequest, model: Path) -> Kind:
    """Every kind of trainer."""
    return Kind(request.param, model)


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="package", autouse=True)
def _ranks_end_with_these_tests() -> Iterator[None]:
    yield
    stop_kept_ranks()
