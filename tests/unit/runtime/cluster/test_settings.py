"""The environment of a pod, read once."""

from pathlib import Path

import pytest

from longshore.api import contract
from longshore.api.names import Component
from longshore_runtime.settings import Settings, SettingsError

WORKER = {
    contract.ENV_JOB_NAME: "count",
    contract.ENV_JOB_NAMESPACE: "team",
    contract.ENV_JOB_UID: "1234",
    contract.ENV_ATTEMPT: "2",
    contract.ENV_COMPONENT: "worker",
    contract.ENV_INDEX: "3",
    contract.ENV_POD_NAME: "count-worker-3",
    contract.ENV_POD_IP: "10.0.0.7",
    contract.ENV_COORDINATOR_ADDRESS: "10.0.0.5",
    contract.ENV_CONFIG: "/config/spec.json",
    contract.ENV_STORAGE: "/storage",
    contract.ENV_TERMINATION_LOG: "/why",
}


def without(*names: str) -> dict[str, str]:
    """The environment of a worker, but for some variables."""
    return {name: value for name, value in WORKER.items() if name not in names}


def test_a_worker_knows_its_place_and_its_head() -> None:
    settings = Settings.from_env(WORKER)
    assert settings.component is Component.WORKER
    assert (settings.index, settings.attempt) == (3, 2)
    assert settings.ray_address == f"10.0.0.5:{contract.RAY_PORT}"
    assert settings.storage == Path("/storage")


def test_the_coordinator_is_its_own_head_and_has_no_number() -> None:
    environment = without(contract.ENV_INDEX, contract.ENV_COORDINATOR_ADDRESS)
    settings = Settings.from_env({**environment, contract.ENV_COMPONENT: "coordinator"})
    assert settings.ray_address == f"10.0.0.7:{contract.RAY_PORT}"
    assert settings.index == 0


def test_an_address_of_ipv6_is_in_brackets() -> None:
    settings = Settings.from_env({**WORKER, contract.ENV_COORDINATOR_ADDRESS: "fd00::5"})
    assert settings.ray_address == f"[fd00::5]:{contract.RAY_PORT}"


def test_the_coordinator_knows_how_long_it_may_take_to_stop() -> None:
    assert Settings.from_env({**WORKER, contract.ENV_GRACE: "600"}).grace_s == 600
    assert Settings.from_env(WORKER).grace_s == contract.COORDINATOR_GRACE_S


def test_heads_on_one_machine_have_ports_of_their_own() -> None:
    """With 750 addresses in each of 16 clusters, and none that the kernel hands out to others."""
    addresses = [
        f"127.{16 + network}.{5 + number // 250}.{number % 250}" for network in range(16) for number in range(700)
    ]
    ports = {Settings.from_env({**WORKER, contract.ENV_COORDINATOR_ADDRESS: one}).ray_port for one in addresses}
    assert len(ports) == len(addresses)
    assert min(ports) >= 20_000 and max(ports) < 32_000


@pytest.mark.parametrize("name", sorted(WORKER))
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings.from_env(without(name))


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (contract.ENV_ATTEMPT, "two", "LONGSHORE_ATTEMPT must be a number and is 'two'"),
        (
            contract.ENV_COMPONENT,
            "boat",
            "must be one of coordinator, worker, trainer, reward, judge, environment and is 'boat'",
        ),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(name: str, value: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        Settings.from_env({**WORKER, name: value})


def test_the_reason_of_the_end_is_left_for_kubernetes(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    Settings.from_env({**WORKER, contract.ENV_TERMINATION_LOG: str(log)}).report_reason("done")
    assert log.read_text() == "done"
