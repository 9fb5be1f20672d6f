"""Ray on one node, which is worker 0, with a job's storage."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray_pods import ENGINES_AND_TRAINERS, worker_pods


@pytest.fixture(scope="package")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """With a checkpoint as far as an engine without a model looks at it."""
    root = tmp_path_factory.mktemp("storage")
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text(json.dumps({"vocab_size": 100, "eos_token_id": 2}))
    with worker_pods(root, 1, ENGINES_AND_TRAINERS):
        yield root
