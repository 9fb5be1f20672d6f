"""The definition of RLJobs, which may be installed after the operator."""

import asyncio
from typing import Final

import structlog

from longshore.api import names
from longshore_kube.errors import KubeError
from longshore_kube.resources import group_path
from longshore_operator.kube import KubeClient

PAUSE_S: Final = 5.0

log = structlog.get_logger(__name__)


async def until_served(kube: KubeClient, pause_s: float = PAUSE_S) -> None:
    """Wait until the API server serves RLJobs: a watch that begins before that never sees any."""
    while (why := await _why_not(kube)) is not None:
        log.warning(
            "RLJobs are not served; install their definition with the chart (crd.install: true), or with "
            "`kubectl apply --server-side -f crds/longshore.dev_rljobs.yaml`",
            error=why,
        )
        await asyncio.sleep(pause_s)


async def _why_not(kube: KubeClient) -> str | None:
    try:
        found = await kube.client.request("GET", group_path(names.API_VERSION))
    except KubeError as error:
        return str(error)
    served = any(resource.get("name") == names.PLURAL for resource in found.get("resources") or ())
    return None if served else f"{names.API_VERSION} has no {names.PLURAL}"
