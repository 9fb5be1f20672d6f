"""The embedded API server alone: nodes and kubelets are what a test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from longshore_devcluster.apiserver import ApiServer
from longshore_kube.access import Access, from_kubeconfig
from longshore_kube.errors import KubeError
from longshore_operator.kube import KubeClient
from tests.contract.operator.harness import CHART

JOB = ("default", "demo")


@contextlib.asynccontextmanager
async def api_server(folder: Path, port: int = 0, ahead: timedelta = timedelta()) -> AsyncIterator[Access]:
    """A server whose clock is ahead of that of the others."""
    server = ApiServer(folder, port=port, now=lambda: datetime.now(UTC) + ahead)
    await server.start()
    try:
        yield from_kubeconfig(server.kubeconfig_path)
    finally:
        await server.stop()


async def until(what: str, look: Callable[[], Any]) -> None:
    """Wait until `look` is true; it may be asynchronous."""
    async with asyncio.timeout(120):
        while True:
            found = look()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.05)


async def create_job(kube: KubeClient, spec: dict[str, Any]) -> None:
    """Create the definition, and a job."""
    crd = yaml.safe_load((CHART / "files" / "rljob-crd.yaml").read_text())
    await kube.client.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=crd)
    job = {"apiVersion": "longshore.dev/v1alpha1", "kind": "RLJob", "spec": spec}
    job |= {"metadata": {"namespace": JOB[0], "name": JOB[1]}}

    async def is_created() -> bool:
        try:
            return await kube.create(job) is not None
        except KubeError as error:
            if "404" not in repr(error) and getattr(error, "code", 0) != 404:
                raise
            return False

    await until("the definition is served", is_created)
