"""Ray on one node, which is worker 0, with a job's storage."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from longshore.api import contract
from longshore.api.names import Component
from longshore_runtime.cluster.placement import node_labels


@pytest.fixture(scope="package")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """With a checkpoint as far as an engine without a model looks at it."""
    root = tmp_path_factory.mktemp("storage")
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text(json.dumps({"vocab_size": 100, "eos_token_id": 2}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(contract.ENV_POD_IP, "127.0.0.1")
        patch.setenv(contract.ENV_STORAGE, str(root))
        labels = node_labels(Component.WORKER, 0)
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, labels=labels)
        try:
            yield root
        finally:
            ray.shutdown()
