"""One embedded cluster with the operator installed from the chart, for all end-to-end tests of jobs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.jobs import NUM_GPUS, Cluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("longshore")
    environment = {**os.environ, "LONGSHORE_HOME": str(home), "NO_COLOR": "1"}
    environment.pop("KUBECONFIG", None)
    longshore = [sys.executable, "-m", "longshore_cli"]
    subprocess.run([*longshore, "up", f"--gpus-per-node={NUM_GPUS}"], env=environment, check=True, timeout=300)
    try:
        yield Cluster(home / "cluster" / "kubeconfig", environment)
    finally:
        subprocess.run([*longshore, "down"], env=environment, check=True, timeout=120)


@pytest.fixture(autouse=True)
def jobs_end_with_their_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Those of a test that fails would hold GPUs that the tests after it need."""
    if "cluster" not in request.fixturenames:
        yield
        return
    with request.getfixturevalue("cluster").without_leftovers():
        yield


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return Path(__file__).parents[2]
