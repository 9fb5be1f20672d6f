"""Main program of worker and reward pods: a Ray node on which the coordinator starts its actors."""

import signal
from types import FrameType

import structlog
from prometheus_client import CollectorRegistry

from longshore.api.contract import ExitCode
from longshore_runtime.cluster.gpu_sharing import shared_gpus
from longshore_runtime.cluster.health import HealthServer
from longshore_runtime.cluster.ray_node import RayNodeError, head_goes, join
from longshore_runtime.errors import Interrupted
from longshore_runtime.settings import Settings

log = structlog.get_logger()

CRASHED = 1


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
    settings.tell_why(reason)
    return code


def _serve(settings: Settings) -> tuple[int, str]:
    with (
        HealthServer(settings.pod_ip, CollectorRegistry()) as health,
        shared_gpus(settings),
        join(settings) as node,
    ):
        health.ready()
        log.info("joined the coordinator", address=settings.ray_address)
        node.wait()
        health.not_ready()
        if head_goes(settings):
            return ExitCode.SUCCEEDED, "the coordinator is gone"
        return CRASHED, "the pod's Ray node ended although the coordinator is there"


def _interrupt(number: int, frame: FrameType | None) -> None:
    # A second signal must not cut the cleaning up short.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Interrupted("the pod was asked to stop")
