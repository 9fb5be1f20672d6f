from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.contract.judge.models import FAMILIES, build

Checkpoints = Callable[[str], Path]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """A checkpoint of each family, made when first asked for."""
    root, made = tmp_path_factory.mktemp("models"), dict[str, Path]()

    def checkpoint(family: str) -> Path:
        if family not in made:
            made[family] = build(root / family, family)
        return made[family]

    return checkpoint


@pytest.fixture(params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, checkpoints: Checkpoints) -> Path:
    """One family after the other."""
    return checkpoints(request.param)
