"""Main program of worker and trainer pods: a Ray node on which the coordinator starts its actors."""

import signal
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from longshore.api.contract import ExitCode
from longshore.api.spec import RLJobSpec
from longshore_runtime.cluster.gpu_sharing import shared_gpus
from longshore_runtime.cluster.health import HealthServer
from longshore_runtime.cluster.node_starter import NodeStarter
from longshore_runtime.cluster.ray_node import RayNode, RayNodeError, head_is_ending, join
from longshore_runtime.cluster.worker_imports import worker_imports
from longshore_runtime.errors import ASKED_TO_STOP, Interrupted
from longshore_runtime.judge.mps import MpsDaemon
from longshore_runtime.settings import Settings

log = structlog.get_logger()

CRASHED: Final = 1
MPS_POLL_S: Final = 1.0
"""Seconds between two checks of the MPS daemon. After a fault, processes cannot start until the pod has ended."""


def run_node(settings: Settings) -> int:
    """Join the coordinator's Ray head and serve until either ends; returns the exit status of the contract."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code, reason = _serve(settings)
    except Interrupted as interruption:
        code, reason = ExitCode.INTERRUPTED, str(interruption)
    except RayNodeError as error:
        code, reason = CRASHED, str(error)
    log.info("the pod ends", code=int(code), reason=reason)
    settings.report_reason(reason)
    return code


def _serve(settings: Settings) -> tuple[int, str]:
    spec = RLJobSpec.model_validate_json(settings.config.read_bytes())
    with (
        NodeStarter(worker_imports(spec, settings.component)) as starter,  # Before there are threads.
        HealthServer(settings.pod_ip, CollectorRegistry()) as health,
        shared_gpus(spec, settings.component) as daemon,
        join(settings, starter) as node,
    ):
        health.ready()
        log.info("joined the coordinator", address=settings.ray_address)
        fault = _serve_until_the_end(node, daemon)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # It ends anyway, and must not leave anything of the node.
        health.not_ready()
        if fault is not None:
            return CRASHED, f"{fault}; engine and judge start again in another pod"
        if head_is_ending(settings):
            return ExitCode.SUCCEEDED, "the coordinator is gone"
        log.error("the Ray node ended by itself", last_log_lines=node.last_log_lines())
        return CRASHED, "the pod's Ray node ended although the coordinator is there"


def _serve_until_the_end(node: RayNode, daemon: MpsDaemon | None) -> str | None:
    """Wait until the node ends, or until MPS fails for everybody on the node's GPUs: then what is wrong."""
    if daemon is None:
        node.wait()
        return None
    while not node.wait(MPS_POLL_S):
        if (fault := daemon.fault()) is not None:
            return fault
    return None


def _interrupt(*_: object) -> None:
    # A second signal must not cut the cleaning up short.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Interrupted(ASKED_TO_STOP)
