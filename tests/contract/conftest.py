"""What several contract suites start from."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in tiny model, untrained; nobody writes to it."""
    from longshore_runtime.backends.tiny_model import build_tiny_model  # Most suites need no torch.

    directory = tmp_path_factory.mktemp("model") / "tiny"
    build_tiny_model(directory, seed=0)
    return directory
