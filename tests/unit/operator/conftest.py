"""What several specifications of the operator start from."""

import pytest

from tests.unit.operator.model import Cluster, running_cluster


@pytest.fixture
def running() -> Cluster:
    """A job whose pods are all ready."""
    return running_cluster()
