"""Settings that a pod gets from the operator through its environment (`longshore.api.contract`)."""

import ipaddress
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from longshore.api import contract
from longshore.api.addresses import redacted
from longshore.api.names import Component

_SHARED_PORTS = range(20_000, 32_000)
"""Ports of heads that share a machine.

They are above those that Ray gives its workers (10002 to 19999), and below those that the kernel hands out.
"""
_SHARED_NETWORKS = 16
"""Number of clusters on one machine whose heads never share a port; each has 127.N.x.y, with N by order."""


class SettingsError(Exception):
    """Raised when the environment is not that of a pod of a job; the message names the variable."""


@dataclass(frozen=True)
class Settings:
    """The environment of a pod, read once."""

    job: str
    namespace: str
    job_uid: str
    attempt: int
    component: Component
    index: int
    """Number of the pod among those of its component; 0 for the coordinator."""
    pod_name: str
    pod_ip: str
    coordinator_ip: str
    config: Path
    """File with the spec of the job; `/dev/null` in environment pods, which do not get it."""
    storage: Path
    """Directory of the storage of the job; the same."""
    termination_log: Path
    is_page_open: bool = False
    """Whether the page of the job is also for others than those who forward its port (coordinator)."""
    grace_s: float = contract.COORDINATOR_GRACE_S
    """Seconds from the request to stop until the pod is killed (coordinator)."""

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Read the contract's variables; raises SettingsError."""
        pod_ip = _text(environment, contract.ENV_POD_IP)
        component = _component(environment)
        is_coordinator = component is Component.COORDINATOR
        no_file = os.devnull if component is Component.ENVIRONMENT else ""
        return cls(
            job=_text(environment, contract.ENV_JOB_NAME),
            namespace=_text(environment, contract.ENV_JOB_NAMESPACE),
            job_uid=_text(environment, contract.ENV_JOB_UID),
            attempt=_number(environment, contract.ENV_ATTEMPT),
            component=component,
            index=0 if is_coordinator else _number(environment, contract.ENV_INDEX),
            pod_name=_text(environment, contract.ENV_POD_NAME),
            pod_ip=pod_ip,
            coordinator_ip=pod_ip if is_coordinator else _text(environment, contract.ENV_COORDINATOR_ADDRESS),
            config=Path(_text(environment, contract.ENV_CONFIG, no_file)),
            storage=Path(_text(environment, contract.ENV_STORAGE, no_file)),
            termination_log=Path(_text(environment, contract.ENV_TERMINATION_LOG)),
            is_page_open=bool(environment.get(contract.ENV_PAGE_OPEN)),
            grace_s=_number(environment, contract.ENV_GRACE, str(contract.COORDINATOR_GRACE_S)),
        )

    @property
    def ray_port(self) -> int:
        """Port of the Ray head, which listens on every address of its machine.

        Pods of a development cluster share one machine. There the port follows from the address, so that jobs can run
        beside each other: heads have the same one only if they are 750 addresses of a cluster, or 16 clusters, apart.
        """
        address = ipaddress.ip_address(self.coordinator_ip)
        if not address.is_loopback:
            return contract.RAY_PORT
        network, number = divmod(int(address) & 0xFF_FFFF, 0x1_0000)
        return _SHARED_PORTS[(number * _SHARED_NETWORKS + network % _SHARED_NETWORKS) % len(_SHARED_PORTS)]

    @property
    def ray_address(self) -> str:
        """Address at which the Ray head listens."""
        return host_port(self.coordinator_ip, self.ray_port)

    def report_reason(self, sentence: str) -> None:
        """Leave the reason of the end where Kubernetes finds it; on a full disk the log alone has it."""
        try:
            self.termination_log.write_text(redacted(sentence))
        except OSError as error:
            sys.stderr.write(f"{self.termination_log} cannot be written: {error}\n")


def host_port(ip: str, port: int) -> str:
    """Return host and port as part of an address; a host of IPv6 is in brackets."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _text(environment: Mapping[str, str], name: str, default: str = "") -> str:
    value = environment.get(name, default)
    if not value:
        raise SettingsError(f"{name} is not set: this program runs in a pod that the Longshore operator made")
    return value


def _number(environment: Mapping[str, str], name: str, default: str = "") -> int:
    value = _text(environment, name, default)
    if not value.isdecimal():
        raise SettingsError(f"{name} must be a number and is {value!r}")
    return int(value)


def _component(environment: Mapping[str, str]) -> Component:
    value = _text(environment, contract.ENV_COMPONENT)
    if value not in list(Component):
        raise SettingsError(f"{contract.ENV_COMPONENT} must be one of {', '.join(Component)} and is {value!r}")
    return Component(value)
