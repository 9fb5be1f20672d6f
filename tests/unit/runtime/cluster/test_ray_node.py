"""What a pod says when its Ray node does not start."""

from pathlib import Path
from typing import Any

import pytest

from longshore.api import contract
from longshore.api.names import Component
from longshore_runtime.cluster.node_starter import NodeStarter
from longshore_runtime.cluster.ray_node import RayNodeError, start_head
from longshore_runtime.settings import Settings

PORT_TAKEN = """\
[2026-01-02 03:04:05,847 W 3428 3428] rpc_client.h:153: Failed to connect to GCS at address 127.16.1.1:27937.
Traceback (most recent call last):
  File "node.py", line 1025, in _init_gcs_client
    raise RuntimeError(
RuntimeError: Failed to start GCS.  Last 1 lines of error files:
[2026-01-02 03:04:05,914 C 3429 3429] (gcs_server) Check failed: Failed to start the grpc server.

.Please check gcs_server.out for details. Last connection error: None
"""


class Failing(NodeStarter):
    """A starter whose process has ended with this output."""

    def __init__(self, output: str) -> None:
        self.pid = -1  # No session has this number.
        self._output_text = output

    def start(self, options: Any, limit_s: float) -> tuple[int | None, str]:
        return 1, self._output_text


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            PORT_TAKEN,
            "RuntimeError: Failed to start GCS. Last 1 lines of error files: [2026-01-02 03:04:05,914 C 3429 3429] "
            "(gcs_server) Check failed: Failed to start the grpc server. .Please check gcs_server.out for details. "
            "Last connection error: None",
        ),
        ("one\nno space left on device\n", "no space left on device"),
        ("", "no message"),
    ],
    ids=["what Ray quotes", "the last line", "nothing"],
)
def test_the_reason_is_in_one_line(output: str, reason: str, tmp_path: Path) -> None:
    environment = {
        contract.ENV_JOB_NAME: "job",
        contract.ENV_JOB_NAMESPACE: "team",
        contract.ENV_JOB_UID: "1",
        contract.ENV_ATTEMPT: "1",
        contract.ENV_COMPONENT: Component.COORDINATOR,
        contract.ENV_POD_NAME: "job-coordinator-0",
        contract.ENV_POD_IP: "127.16.1.1",
        contract.ENV_CONFIG: str(tmp_path / "spec.json"),
        contract.ENV_STORAGE: str(tmp_path),
        contract.ENV_TERMINATION_LOG: str(tmp_path / "why"),
    }
    with pytest.raises(RayNodeError) as raised:
        start_head(Settings.from_env(environment), Failing(output))
    assert str(raised.value) == f"Ray did not start (exit status 1): {reason}"
