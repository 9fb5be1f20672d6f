"""Start the Ray processes of a node, without those that a job does not use.

`ray start` also starts a dashboard agent, an agent for runtime environments and a server for remote drivers: Python
processes that cost some ten seconds of CPU time and 0.4 GB in every pod, one of which asks the cloud's metadata
address where it runs. Jobs have metrics of their own, pods have their environment from an image, and the
driver is in the coordinator. A raylet does not start without commands for its two agents and ends with them, so both
are a process that sleeps. Actors therefore must not ask for a `runtime_env`.

This module is run as a program, once per node; see `ray_node`. It uses what is private in the pinned version of Ray.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import ray._raylet
from ray._private import services
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
from ray._private.node import Node
from ray._private.parameter import RayParams

_AGENT_COMMANDS: Final = ("--dashboard_agent_command=", "--runtime_env_agent_command=")
_SLEEP: Final = "sleep infinity"
_AGENT_PORTS: Final = (
    "DASHBOARD_AGENT_LISTEN_PORT_NAME",
    "METRICS_AGENT_PORT_NAME",
    "METRICS_EXPORT_PORT_NAME",
    "RUNTIME_ENV_AGENT_PORT_NAME",
)
_CLOSED_PORT: Final = 1
"""What a raylet is given as the ports of its agents: nothing listens there."""


@dataclass(frozen=True)
class NodeOptions:
    """A node to start; the head has a port and no address to join."""

    ip: str
    temp_dir: str
    labels: Mapping[str, str]
    port: int | None = None
    address: str | None = None


class _Node(Node):
    """Ray's node, whose raylet finds the ports of its agents where agents write them."""

    def start_raylet(self, *args: Any, **kwargs: Any) -> None:
        raylet: Any = ray._raylet  # Its types leave these out.
        for name in _AGENT_PORTS:
            raylet.persist_port(self._session_dir, self._node_id, getattr(raylet, name), _CLOSED_PORT)
        super().start_raylet(*args, **kwargs)

    def start_api_server(self, **_: Any) -> None:
        """It would run even without a dashboard, for statistics of usage that jobs do not report."""


def start(options: NodeOptions) -> None:
    """Start the node and return once it is registered; its processes stay behind."""
    _replace_agents()
    ensure_token_if_auth_enabled(None, create_token_if_missing=False)
    params = RayParams(
        node_ip_address=options.ip,
        node_name=options.ip,
        temp_dir=options.temp_dir,
        labels=dict(options.labels),
        num_cpus=0,
        num_gpus=0,
        gcs_server_port=options.port,
        gcs_address=options.address,
        include_dashboard=False,
        include_log_monitor=False,
        no_monitor=True,
    )
    _Node(params, head=options.address is None, shutdown_at_exit=False, spawn_reaper=False, connect_only=False)


def _replace_agents() -> None:
    start_process = services.start_ray_process

    def with_sleeping_agents(command: list[str], *args: Any, **kwargs: Any) -> Any:
        return start_process([_asleep(argument) for argument in command], *args, **kwargs)

    services.start_ray_process = with_sleeping_agents


def _asleep(argument: str) -> str:
    return next((name + _SLEEP for name in _AGENT_COMMANDS if argument.startswith(name)), argument)


def main() -> None:
    """Start the node that the command line describes as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("options", type=json.loads)
    start(NodeOptions(**parser.parse_args().options))


if __name__ == "__main__":
    main()
