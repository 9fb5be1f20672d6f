"""Measure how long the operator takes to answer a tenant's change of a job among hostile tenants.

The tenant is alone at first, and then among 200 jobs of every kind that is known to do harm.

The embedded API server and the operator are processes of their own; nothing runs in pods, whose coordinators are given
an address so that the operator makes the others. `lag` is from a change of the quiet tenant's spec (`suspend`, back and
forth) until its status says that this generation was observed: a watch, a read, a decision and a write. Hostile jobs
are in one namespace; `spread` puts each into one of its own, so that fairness between namespaces is no help. Then 180
suspended jobs of 1 MB are there too, and the operator is started again in front of them all.

Fails if a lag reaches its limit (`LIMITS_S`), if the operator takes more memory than the chart allows it, is ever
unhealthy, or writes a traceback, and if the API server takes the small spec that asks for 131,072 pods.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml
from kubernetes import client, config

from benchmarks.hostile_jobs import KINDS, NUM_HUGE, NUM_RESTLESS, Neighbours, pools, rljob
from benchmarks.local_api_server import LocalApiServer
from benchmarks.measured_process import MeasuredProcess, free_port
from benchmarks.report import report, spread
from longshore_kube.access import from_kubeconfig
from longshore_kube.errors import ApiError
from longshore_kube.quantities import parse_quantity
from longshore_operator.kube import RLJOBS, KubeClient

LIMIT_S: Final = 2.0
RESTART_LIMIT_S: Final = 30.0
"""Limit of the lag after a restart: the operator first lists all jobs and looks at each of them."""
LIMITS_S: Final = {"alone": LIMIT_S, "beside": LIMIT_S, "after_restart": RESTART_LIMIT_S}
QUIET: Final = "quiet"
TENANT: Final = "tenant"
"""User agent of clients other than the operator."""
ROOT: Final = Path(__file__).parents[1]
CRD: Final = ROOT / "crds" / "longshore.dev_rljobs.yaml"
CHART_VALUES: Final = ROOT / "charts" / "longshore" / "values.yaml"


class Quiet:
    """Tenant that only wants an answer."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube
        self._suspended = False

    async def lag_s(self) -> float:
        """Return the seconds from a change of the spec until the status says that it was observed."""
        self._suspended = not self._suspended
        written = await self._kube.apply(rljob((QUIET, "job"), {"suspend": self._suspended}))
        generation, version = written["metadata"]["generation"], written["metadata"]["resourceVersion"]
        began_s = time.monotonic()
        async with asyncio.timeout(120):
            async for _, job in self._kube.client.watch(RLJOBS.path(QUIET), version):
                if job.get("status", {}).get("observedGeneration", 0) >= generation:
                    return time.monotonic() - began_s
        raise AssertionError("the watch ended")


class Operator(MeasuredProcess):
    """The operator, with its health and its memory."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self._port = free_port()
        command = [sys.executable, "-m", "longshore_operator", "run", "--all-namespaces", "--runtime-image=unused"]
        command += ["--no-leader-election", f"--health-port={self._port}"]
        super().__init__(command, kubeconfig, log)

    async def health(self) -> str:
        """Return `ok`, or what `/healthz` says."""
        try:
            url, timeout = f"http://127.0.0.1:{self._port}/healthz", aiohttp.ClientTimeout(total=5)
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
                return await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            return repr(error)

    async def until_healthy(self) -> None:
        async with asyncio.timeout(120):
            while await self.health() != "ok":  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def clients(kubeconfig: Path) -> AsyncIterator[tuple[KubeClient, KubeClient]]:
    """Yield the client of the tenants, and that of their coordinators."""
    access = from_kubeconfig(kubeconfig)
    async with KubeClient(access, TENANT) as tenant, KubeClient(access, "longshore-coordinator") as coordinator:
        yield tenant, coordinator


def prepare(kubeconfig: Path, namespaces: Sequence[str]) -> None:
    """Create the CRD and the namespaces."""
    api = config.new_client_from_config(str(kubeconfig))
    client.ApiextensionsV1Api(api).create_custom_resource_definition(yaml.safe_load(CRD.read_text()))
    for name in namespaces:
        client.CoreV1Api(api).create_namespace({"metadata": {"name": name}})


async def measure(is_spread: bool, num_samples: int, writes_per_s: float) -> dict[str, Any]:
    """Measure lags alone, among the hostile jobs, and after the operator was started again in front of them."""
    with tempfile.TemporaryDirectory() as folder, LocalApiServer(Path(folder)) as server:
        log = Path(folder) / "log"
        async with clients(server.kubeconfig) as (tenant, coordinator):
            neighbours = Neighbours(tenant, coordinator, is_spread, writes_per_s)
            prepare(server.kubeconfig, [QUIET, *neighbours.namespaces])
            operator = Operator(server.kubeconfig, log)
            await operator.until_healthy()
            quiet = Quiet(tenant)
            await quiet.lag_s()
            alone = [await quiet.lag_s() for _ in range(num_samples)]
            _report("alone", alone)
            refused = await _refused(tenant)
            arriving, health, lags = asyncio.create_task(neighbours.create()), [], []
            while not arriving.done():
                lags.append(await quiet.lag_s())
                health.append(await operator.health())
            await arriving
            restless, began_s = asyncio.create_task(neighbours.never_rest()), time.monotonic()
            for _ in range(num_samples):
                lags.append(await quiet.lag_s())
                health.append(await operator.health())
            _report("beside", lags)
            memory_mib, cpu_s = operator.peak_memory_mib(), operator.cpu_s()
            operator.stop()
            operator = Operator(server.kubeconfig, log)
            await operator.until_healthy()
            after_restart = [await quiet.lag_s() for _ in range(num_samples)]
            _report("after restart", after_restart)
            health.append(await operator.health())
            memory_mib = max(memory_mib, operator.peak_memory_mib())
            restless.cancel()
            writes_per_s = neighbours.num_writes / (time.monotonic() - began_s)
            operator.stop()
        return {
            "spread": is_spread,
            "alone_s": alone,
            "beside_s": lags,
            "after_restart_s": after_restart,
            "unhealthy": [text for text in health if text != "ok"],
            "refused_by_the_api_server": refused,
            "hostile_writes_per_s": writes_per_s,
            "peak_memory_mib": memory_mib,
            "cpu_s": cpu_s,
            "tracebacks": log.read_text().count("Traceback"),
        }


def _report(when: str, lags: list[float]) -> None:
    """Print lags on the way, because a run takes minutes."""
    print(f"{when}: {json.dumps(spread_ms(lags))} ms", file=sys.stderr)


async def _refused(kube: KubeClient) -> str:
    """Return what the API server says to the small spec that asks for 131,072 pods."""
    try:
        await kube.create(rljob((QUIET, "too-many"), {"reward": pools(32, 4_096)}))
    except ApiError as error:
        return error.message
    return ""


def main() -> int:
    """Measure, report; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--writes-per-s", type=float, default=50.0, help="of all hostile tenants together, at most")
    given = parser.parse_args()
    runs = [asyncio.run(measure(is_spread, given.samples, given.writes_per_s)) for is_spread in (False, True)]
    lags = {f"{_name(run)}/{when}": spread_ms(run[f"{when}_s"]) for run in runs for when in LIMITS_S}
    ratios = {
        f"beside_over_alone/{_name(run)}": [statistics.median(run["beside_s"]) / statistics.median(run["alone_s"])]
        for run in runs
    }
    settings = {"restless_jobs": NUM_RESTLESS, "kinds": list(KINDS), "huge_jobs": NUM_HUGE, "load": os.getloadavg()}
    report("hostile_tenants", ratios, settings, runs, lag_ms=lags)
    broken = {_name(run): failures(run, memory_limit_mib()) for run in runs}
    if any(broken.values()):
        print(json.dumps(broken, indent=1), file=sys.stderr)
    return 1 if any(broken.values()) else 0


def failures(run: dict[str, Any], limit_mib: float) -> list[str]:
    """Return sentences about what one tenant could do to another in a run."""
    worst_s = {when: max(run[f"{when}_s"]) for when in LIMITS_S}
    found = [f"a lag of {worst_s[when]:.2f} s {when}" for when, limit_s in LIMITS_S.items() if worst_s[when] >= limit_s]
    if run["peak_memory_mib"] > limit_mib:
        found.append(f"{run['peak_memory_mib']:.0f} MiB of memory, {limit_mib:.0f} allowed")
    if not run["refused_by_the_api_server"]:
        found.append("the API server took a spec of 131,072 pods")
    if run["tracebacks"]:
        found.append(f"{run['tracebacks']} tracebacks")
    return [*found, *run["unhealthy"]]


def memory_limit_mib() -> float:
    """Return the memory limit of the operator, as the chart sets it."""
    limit = yaml.safe_load(CHART_VALUES.read_text())["resources"]["limits"]["memory"]
    return float(parse_quantity(limit)) / 2**20


def _name(run: dict[str, Any]) -> str:
    return "spread" if run["spread"] else "one namespace"


def spread_ms(seconds: list[float]) -> dict[str, float]:
    """Return minimum, median and maximum, in milliseconds."""
    return {name: round(1000 * value, 1) for name, value in spread(seconds).items()}


if __name__ == "__main__":
    raise SystemExit(main())
