from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.trainers.ranks import leave_world, stop_kept_ranks
from tests.contract.trainers.replicas import Kind


@pytest.fixture(params=["fake", "torch", "lora", "megatron"])
def kind(request: pytest.FixtureRequest, model: Path) -> Kind:
    """Every kind of trainer."""
    return Kind(request.param, model)


@pytest.fixture(scope="package", autouse=True)
def _ranks_end_with_these_tests() -> Iterator[None]:
    yield
    stop_kept_ranks()
    leave_world()
