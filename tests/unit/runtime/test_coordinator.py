"""How a coordinator ends that cannot even begin."""

from pathlib import Path

import pytest

from longshore.api import contract
from longshore.api.names import Component
from longshore_runtime.coordinator import run_coordinator


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ('{"model": {"builtin": "Huge"}}', "spec.model.builtin: input should be 'Tiny', not \"Huge\""),
        ("{", "spec: invalid JSON: EOF while parsing"),
    ],
)
def test_a_coordinator_whose_spec_cannot_be_read_leaves_the_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, told: str
) -> None:
    (tmp_path / "spec.json").write_text(config)
    environment = {
        contract.ENV_JOB_NAME: "count",
        contract.ENV_JOB_NAMESPACE: "team",
        contract.ENV_JOB_UID: "1234",
        contract.ENV_ATTEMPT: "1",
        contract.ENV_COMPONENT: Component.COORDINATOR.value,
        contract.ENV_POD_NAME: "count-coordinator",
        contract.ENV_POD_IP: "127.0.0.1",
        contract.ENV_CONFIG: str(tmp_path / "spec.json"),
        contract.ENV_STORAGE: str(tmp_path),
        contract.ENV_TERMINATION_LOG: str(tmp_path / "why"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run_coordinator() == contract.ExitCode.USER_ERROR
    assert (tmp_path / "why").read_text().startswith(told)
