"""Start the Ray processes of a node, without those that a job does not use.

`ray start` also starts a dashboard agent, an agent for runtime environments and a server for remote drivers: Python
processes that cost some ten seconds of CPU time and 0.4 GB in every pod, one of which asks the cloud's metadata
address where it runs. Jobs have metrics of their own, pods have their environment from an image, and the driver is in
the coordinator. A raylet does not start without commands for its two agents and ends with them, so both are a process
that sleeps. Actors therefore must not ask for a `runtime_env`. Workers are forks of one process; see `fork_server`.

This uses what is private in the pinned version of Ray.
"""

import itertools
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ray._raylet
from ray._private import services
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._private.ray_constants import PROCESS_TYPE_RAYLET

FIRST_JOB: Final = "01000000"
"""Ray's number of the first driver of a cluster, in its notation. A job has one: the coordinator."""
_AGENT_COMMANDS: Final = ("--dashboard_agent_command", "--runtime_env_agent_command")
_WORKER_COMMAND: Final = "--python_worker_command"
_SLEEP: Final = "sleep infinity"
_AGENT_PORTS: Final = (
    "DASHBOARD_AGENT_LISTEN_PORT_NAME",
    "METRICS_AGENT_PORT_NAME",
    "METRICS_EXPORT_PORT_NAME",
    "RUNTIME_ENV_AGENT_PORT_NAME",
)
_CLOSED_PORT: Final = 1
"""Port that a raylet is given for its agents: nothing listens there."""


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
        """Do not start the API server.

        It would run even without a dashboard, for statistics of usage that jobs do not report.
        """


def start(options: NodeOptions, launcher: Sequence[str]) -> dict[str, str]:
    """Start the node and return once it is registered; its processes stay behind.

    `launcher` comes before the command of every worker; empty: workers start as Ray starts them. Returns the variables
    that all workers have.
    """
    _replace_commands(launcher)
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
    is_head = options.address is None
    node = _Node(params, head=is_head, shutdown_at_exit=False, spawn_reaper=False, connect_only=False)
    (raylet,) = node.all_processes[PROCESS_TYPE_RAYLET]
    return {"RAY_JOB_ID": FIRST_JOB, "RAY_RAYLET_PID": str(raylet.process.pid)}


def _replace_commands(launcher: Sequence[str]) -> None:
    """Have the raylet run other programs as its agents and as its workers."""
    start_process = services.start_ray_process

    def start_other(command: list[str], *args: Any, **kwargs: Any) -> Any:
        return start_process([_other(argument, launcher) for argument in command], *args, **kwargs)

    services.start_ray_process = start_other


def _other(argument: str, launcher: Sequence[str]) -> str:
    name, _, value = argument.partition("=")
    if name in _AGENT_COMMANDS:
        return f"{name}={_SLEEP}"
    if name == _WORKER_COMMAND and launcher:
        _python, _setup_worker, *rest = shlex.split(value)
        worker = itertools.dropwhile(lambda flag: flag.startswith("-"), rest)  # Flags of Python's come first.
        return f"{name}={subprocess.list2cmdline([*launcher, *worker])}"
    return argument
