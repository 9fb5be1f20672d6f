"""One embedded cluster with the operator installed from the chart, for all end-to-end tests of jobs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.jobs import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("longshore")
    environment = {**os.environ, "LONGSHORE_HOME": str(home), "NO_COLOR": "1"}
    environment.pop("KUBECONFIG", None)
    longshore = [sys.executable, "-m", "longshore_cli"]
    subprocess.run([*longshore, "up"], env=environment, check=True, timeout=300)
    try:
        yield Cluster(home / "cluster" / "kubeconfig", environment)
    finally:
        subprocess.run([*longshore, "down"], env=environment, check=True, timeout=120)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return Path(__file__).parents[2]
