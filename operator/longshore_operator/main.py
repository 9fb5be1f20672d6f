"""`longshore-operator run`: lead, watch and reconcile until a stop is requested."""

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from longshore.api import names
from longshore.api.contract import POD_USER, USERS_ASSIGNED
from longshore.api.scheduling import PodGroupKind
from longshore_kube.access import Access, load
from longshore_kube.errors import KubeError
from longshore_operator import health
from longshore_operator.config import (
    API_SERVER_PORTS,
    NO_ADMISSION,
    ConfigError,
    OperatorConfig,
    RdmaDevices,
    read_config,
)
from longshore_operator.controller import Controller, utc_now
from longshore_operator.kube import KubeClient
from longshore_operator.leader import Election, LeadershipLost
from longshore_operator.metrics import OperatorMetrics
from longshore_operator.rljob_watch import until_first_ends, watch_jobs

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """The command line."""

    config: OperatorConfig
    namespace: str | None
    """Namespace to watch; None: all."""
    lease_namespace: str | None
    lease_name: str
    leader_election: bool
    health_address: str
    health_port: int
    max_concurrency: int


def parse(arguments: Sequence[str]) -> OperatorOptions:
    """Read the command line, or exit with a usage message."""
    parser = argparse.ArgumentParser(prog="longshore-operator", description="Operator for RLJobs.")
    run = parser.add_subparsers(dest="command", required=True).add_parser("run", help="watch and reconcile RLJobs")
    scope = run.add_mutually_exclusive_group(required=True)
    scope.add_argument("--namespace", help="watch this namespace only")
    scope.add_argument("--all-namespaces", action="store_true", help="watch every namespace")
    run.add_argument("--runtime-image", required=True, help="image of the jobs' pods where spec.image is unset")
    run.add_argument("--allow-privileged-templates", action="store_true", help="do not refuse risky pod templates")
    for kind in ("priority", "runtime"):
        help_text = f"{kind.capitalize()}Class that jobs may name (repeatable; default none)"
        run.add_argument(f"--allow-{kind}-class", action="append", default=[], metavar="NAME", help=help_text)
    run.add_argument(
        "--admission", type=Path, metavar="FILE", help="limits, quotas and priorities of jobs (default: none)"
    )
    run.add_argument("--kueue", action="store_true", help="jobs may be in queues of Kueue")
    kinds = [kind.value for kind in PodGroupKind]
    run.add_argument(
        "--pod-groups",
        action="append",
        default=[],
        choices=kinds,
        help="PodGroups that jobs may ask for (repeatable; default none)",
    )
    run.add_argument("--no-network-policies", action="store_true", help="do not isolate jobs by NetworkPolicies")
    run.add_argument(
        "--api-server-port",
        type=int,
        action="append",
        help="port of the API server that coordinators may reach (repeatable; default 443 and 6443)",
    )
    run.add_argument(
        "--page-peer",
        type=json.loads,
        action="append",
        default=[],
        metavar="JSON",
        help="NetworkPolicyPeer that may read the pages of jobs (repeatable; default none)",
    )
    run.add_argument(
        "--pod-user",
        type=_pod_user,
        default=POD_USER,
        metavar="ID",
        help=f"user and group of the jobs' pods; {USERS_ASSIGNED}: the cluster assigns them (default {POD_USER})",
    )
    run.add_argument(
        "--image-pull-secret",
        action="append",
        default=[],
        metavar="NAME",
        help="Secret in the namespace of a job with which its pods pull images (repeatable; default none)",
    )
    run.add_argument(
        "--rdma",
        type=RdmaDevices.model_validate_json,
        metavar="JSON",
        help="RDMA devices of GPU pods that use NCCL across pods, as resource and count (default: none)",
    )
    run.add_argument("--no-leader-election", action="store_true", help="this is the only process: do not use a Lease")
    run.add_argument("--lease-namespace", help="namespace of the Lease (default: the operator's own)")
    run.add_argument("--lease-name", default=names.OPERATOR_FIELD_MANAGER, help="name of the Lease")
    run.add_argument("--health-address", default=os.environ.get("POD_IP", "127.0.0.1"), help="address to listen on")
    run.add_argument("--health-port", type=int, default=8081, help="port of /healthz, /readyz and /metrics")
    run.add_argument("--max-concurrency", type=int, default=16, help="jobs reconciled at once")
    given = parser.parse_args(arguments)
    return OperatorOptions(
        config=OperatorConfig(
            runtime_image=given.runtime_image,
            allow_privileged_templates=given.allow_privileged_templates,
            network_policies=not given.no_network_policies,
            api_server_ports=tuple(given.api_server_port or API_SERVER_PORTS),
            page_peers=tuple(given.page_peer),
            priority_classes=frozenset(given.allow_priority_class),
            runtime_classes=frozenset(given.allow_runtime_class),
            pod_user=given.pod_user,
            image_pull_secrets=tuple(given.image_pull_secret),
            rdma=given.rdma,
            kueue=given.kueue,
            pod_groups=frozenset(PodGroupKind(kind) for kind in given.pod_groups),
            admission=read_config(given.admission) if given.admission is not None else NO_ADMISSION,
        ),
        namespace=None if given.all_namespaces else given.namespace,
        lease_namespace=given.lease_namespace,
        lease_name=given.lease_name,
        leader_election=not given.no_leader_election,
        health_address=given.health_address,
        health_port=given.health_port,
        max_concurrency=given.max_concurrency,
    )


def _pod_user(text: str) -> int | None:
    if text == USERS_ASSIGNED:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0 (root), or {USERS_ASSIGNED}")
    return int(text)


async def run(options: OperatorOptions, access: Access, stop: asyncio.Event) -> None:
    """Run until `stop` is set.

    Raises:
        LeadershipLost: another process may lead by now.
        Exception: whatever ended one of the parts; the process is meant to be started again.
    """
    metrics = OperatorMetrics()
    leads = asyncio.Event()
    for contradiction in options.config.admission.contradictions():
        log.warning(contradiction)
    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(KubeClient(access))
        controller = Controller(kube, options.config, metrics, options.namespace, options.max_concurrency)
        runner = web.AppRunner(health.application(controller, metrics, leads.is_set), access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, options.health_address, options.health_port).start()
        election = Election(
            kube,
            options.lease_namespace or access.namespace,
            options.lease_name,
            f"{socket.gethostname()}-{os.getpid()}",
            utc_now,
        )
        if options.leader_election:
            if not await _acquire(election, stop):
                return
            stack.push_async_callback(_release, election)
        # Pushed after the release of the Lease, so that it runs before: nothing is decided once another may lead.
        stack.push_async_callback(controller.close)
        leads.set()
        metrics.leader.set(1)
        parts: list[Coroutine[Any, Any, object]] = [
            stop.wait(),
            controller.run(),
            watch_jobs(kube, options.namespace, controller.on_news, stop),
        ]
        await until_first_ends([*parts, election.hold()] if options.leader_election else parts)


async def _acquire(election: Election, stop: asyncio.Event) -> bool:
    """Wait for leadership; return whether it was reached before a stop was requested."""
    await until_first_ends([election.acquire(), stop.wait()])
    return not stop.is_set()


async def _release(election: Election) -> None:
    try:
        await election.release()
    except (KubeError, TimeoutError) as error:
        log.warning("the Lease was not released", error=repr(error))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; the exit code is 0 after a requested stop and 1 otherwise."""
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        _configure_logging()
        asyncio.run(_main(options))
    except (KubeError, ConfigError, LeadershipLost, OSError) as error:
        sys.exit(f"longshore-operator: {error}")


def _configure_logging() -> None:
    """Log one JSON object per line to the standard output, from our code and from libraries."""
    common: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*common, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = logging.StreamHandler(sys.stdout)
    renderer = structlog.processors.JSONRenderer()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=common))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # kopf logs every event that it hands over.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)


async def _main(options: OperatorOptions) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run(options, load(), stop)
