"""Measure how long the operator takes until many jobs run and have ended, and what it asks of the API server.

The embedded API server and the operator are processes of their own. Nothing runs in pods: a pretend kubelet binds each
pod and says that it runs, and in the end that its coordinator has succeeded. `starting` is from the first creation
until every job is Running, `churn` a while in which coordinators report, `restart` the start of another operator among
running jobs and as many pods of others, and `ending` from the first coordinator that succeeds until every job is
Succeeded. Then another operator that is built on kopf, that of dask-kubernetes, starts as many pods on an API server of
its own. All processes share the machine.
"""

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from benchmarks.dask_fleet import measure_start
from benchmarks.hostile_jobs import rljob
from benchmarks.hostile_tenants import TENANT, Operator, clients, prepare
from benchmarks.local_api_server import LocalApiServer, Serve
from benchmarks.measured_process import cpu_s as cpu_s_of
from benchmarks.measured_process import peak_memory_mib
from benchmarks.pretend_kubelet import PretendKubelet, background
from benchmarks.report import report
from longshore.api import names
from longshore_devcluster.apiserver.router import Router
from longshore_kube.reflector import Listed, Reflector
from longshore_kube.resources import PODS
from longshore_operator.kube import RLJOBS, KubeClient

NAMESPACES: Final = 10
WORKERS: Final = 9
"""Number of workers of a job, which has ten pods with the coordinator."""
PARALLEL: Final = 16
"""Number of requests that the pretend kubelet and the users make at once."""
FOREIGN_PODS_PER_JOB: Final = 10
ELSEWHERE: Final = "elsewhere"
"""Namespace of pods that belong to no job."""
CHURN_S: Final = 10.0
REPORTS_PER_S: Final = 20.0
DEADLINE_S: Final = 1_800.0
DASK_LIMIT_S: Final = 900.0
"""Seconds after which the figures of dask-kubernetes are those of the pods that run."""
_LAG: Final = "longshore_operator_reconcile_lag_seconds"


@dataclass
class Fleet:
    """All jobs, with their pretended users and coordinators."""

    kube: KubeClient
    kubelet: PretendKubelet
    num_jobs: int
    phases: dict[tuple[str, str], str] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def keys(self) -> list[tuple[str, str]]:
        return [(f"team-{index % NAMESPACES}", f"job-{index}") for index in range(self.num_jobs)]

    async def create(self) -> None:
        spec = {"workers": {"replicas": WORKERS, "gpusPerPod": 0}, "reward": {"pods": 0}}
        await in_parallel(self.kube.create(rljob(key, spec)) for key in self.keys)

    async def succeed(self) -> None:
        await in_parallel(self.kubelet.succeed(*key) for key in self.keys)

    async def report(self) -> None:
        """Report as coordinators do, spread over all jobs."""
        end_s, number = time.monotonic() + CHURN_S, 0
        while time.monotonic() < end_s:
            number += 1
            space, name = self.keys[number % self.num_jobs]
            body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"namespace": space, "name": name}}
            await self.kube.apply(body | {"status": {"runtime": {"attempt": 1, "step": number}}}, "status")
            await asyncio.sleep(1 / REPORTS_PER_S)

    async def create_foreign_pods(self) -> None:
        """Create as many pods of others as there are pods of jobs; nothing happens to them."""
        pod = {"spec": {"containers": [{"name": "main", "image": "unused"}]}}
        await in_parallel(
            self.kube.client.create(PODS, pod | {"metadata": {"name": f"foreign-{index}"}}, ELSEWHERE)
            for index in range(self.num_jobs * FOREIGN_PODS_PER_JOB)
        )

    async def until(self, phase: str) -> float:
        """Wait until every job has a phase; return the monotonic time of that."""
        async with asyncio.timeout(DEADLINE_S):
            while sum(found == phase for found in self.phases.values()) < self.num_jobs:
                self.changed.clear()
                await self.changed.wait()
        return time.monotonic()

    async def follow_jobs(self) -> None:
        """Follow the phases of all jobs for ever."""
        async for news in Reflector(self.kube.client, RLJOBS.path(None), lambda found: found).changes():
            for job in news.items if isinstance(news, Listed) else [news.item]:
                key = job["metadata"]["namespace"], job["metadata"]["name"]
                self.phases[key] = (job.get("status") or {}).get("phase", "")
                self.changed.set()


async def in_parallel(calls: Iterable[Awaitable[Any]]) -> None:
    """Await all calls, PARALLEL of them at a time."""
    slots = asyncio.Semaphore(PARALLEL)

    async def one(call: Awaitable[Any]) -> None:
        async with slots:
            await call

    await asyncio.gather(*(one(call) for call in calls))


class ScrapedOperator(Operator):
    """An operator whose metrics are read."""

    async def metrics(self) -> list[Sample]:
        url = f"http://127.0.0.1:{self._port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            families = text_string_to_metric_families(await response.text())
            return [sample for family in families for sample in family.samples]

    async def lags(self) -> dict[float, float]:
        """Return the number of reconciliations by the bucket of their lag, in seconds."""
        name = f"{_LAG}_bucket"
        return {float(one.labels["le"]): one.value for one in await self.metrics() if one.name == name}

    async def until_idle(self, num_jobs: int) -> None:
        """Wait until every job had a pass, and none is due."""
        await self.until_healthy()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = {one.name: one.value for one in await self.metrics() if not one.labels}
                if found[f"{_LAG}_count"] >= num_jobs and found["longshore_operator_queue_depth"] == 0:
                    return
                await asyncio.sleep(0.1)


class CountingApiServer(LocalApiServer):
    """An API server with the namespaces and the CRD, which counts the requests of operators."""

    def __init__(self, folder: Path) -> None:
        self.num_requests: Synchronized[int] = multiprocessing.Value("q")
        super().__init__(folder, self._counting)

    def start(self) -> None:
        super().start()
        prepare(self.kubeconfig, [ELSEWHERE, *(f"team-{index}" for index in range(NAMESPACES))])

    def _counting(self, serve: Serve) -> Serve:
        async def counted(router: Router, request: web.Request) -> web.StreamResponse:
            self.num_requests.value += request.headers.get("User-Agent") != TENANT
            return await serve(router, request)

        return counted


async def measure(num_jobs: int) -> dict[str, Any]:
    """Measure everything once."""
    with tempfile.TemporaryDirectory() as folder, CountingApiServer(Path(folder)) as server:
        log = Path(folder) / "log"
        async with clients(server.kubeconfig) as (kube, _):
            operator = ScrapedOperator(server.kubeconfig, log)
            await operator.until_healthy()
            fleet = Fleet(kube, PretendKubelet(kube.client, PARALLEL), num_jobs)
            async with background(fleet.follow_jobs(), fleet.kubelet.run()):
                start = await _started(fleet, operator, server)
                lags = await operator.lags()
                await fleet.report()
                churn = quantiles(lags, await operator.lags())
                cpu_s, memory_mib = operator.cpu_s(), operator.peak_memory_mib()
                operator.stop()
                await fleet.create_foreign_pods()
                before, began_s = server.num_requests.value, time.monotonic()
                operator = ScrapedOperator(server.kubeconfig, log)
                await operator.until_idle(num_jobs)
                restart = {
                    "seconds": time.monotonic() - began_s,
                    "requests_per_job": (server.num_requests.value - before) / num_jobs,
                    "cpu_s": operator.cpu_s(),
                    "peak_memory_mib": operator.peak_memory_mib(),
                }
                began_s = time.monotonic()
                await fleet.succeed()
                succeeded_s = await fleet.until("Succeeded") - began_s
            memory_mib = max(memory_mib, operator.peak_memory_mib())
            operator.stop()
        return {
            "jobs": num_jobs,
            **start,
            "churn_lag_s": churn,
            "restart": restart,
            "ending_s": succeeded_s,
            "operator_cpu_s": cpu_s,
            "operator_peak_memory_mib": memory_mib,
            "server_cpu_s": cpu_s_of(server.pid),
            "server_peak_memory_mib": peak_memory_mib(server.pid),
            "tracebacks": log.read_text().count("Traceback"),
        }


async def _started(fleet: Fleet, operator: ScrapedOperator, server: CountingApiServer) -> dict[str, Any]:
    """Measure from the first creation until every job is Running."""
    before, began_s = server.num_requests.value, time.monotonic()
    pods = asyncio.create_task(_timed(fleet.kubelet.until_running(fleet.num_jobs * (WORKERS + 1))))
    await fleet.create()
    running_s = await fleet.until("Running") - began_s
    per_job = (server.num_requests.value - before) / fleet.num_jobs
    print(f"Running after {running_s:.1f} s, {per_job:.1f} requests a job", file=sys.stderr)
    return {
        "starting_s": running_s,
        "pods_running_s": await pods - began_s,
        "requests_per_job": per_job,
        "starting_lag_s": quantiles({}, await operator.lags()),
        "starting_cpu_s": operator.cpu_s(),
    }


async def _timed(work: Awaitable[None]) -> float:
    """Return the monotonic time at which the work was done."""
    await work
    return time.monotonic()


async def measure_dask(num_jobs: int) -> dict[str, Any]:
    """Measure the start of as many clusters of as many pods by the operator of dask-kubernetes."""
    keys = [(f"team-{index % NAMESPACES}", f"job-{index}") for index in range(num_jobs)]
    with tempfile.TemporaryDirectory() as folder, CountingApiServer(Path(folder)) as server:
        async with clients(server.kubeconfig) as (kube, _):
            before = server.num_requests.value
            log = Path(folder) / "log"
            found = await measure_start(kube.client, server.kubeconfig, log, keys, WORKERS, PARALLEL, DASK_LIMIT_S)
            per_job = (server.num_requests.value - before) / num_jobs
            print(f"dask-kubernetes: {found['num_running']} pods, {per_job:.1f} requests a job", file=sys.stderr)
            return {"jobs": num_jobs, "requests_per_job": per_job, **found, "server_cpu_s": cpu_s_of(server.pid)}


def quantiles(before: dict[float, float], after: dict[float, float]) -> dict[str, float | None]:
    """Return upper bounds of the median and the 99th percentile from a histogram; None: above its last bucket."""
    counts = {limit: after[limit] - before.get(limit, 0.0) for limit in sorted(after)}
    total = max(counts.values())
    return {
        name: next((limit for limit, count in counts.items() if limit < inf and count >= share * total), None)
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }


def ratios_of(runs: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return costs of a job in a large fleet over the smallest, and of Longshore over dask-kubernetes."""
    first = runs[0]
    ratios = {
        f"{what}_per_job/{run['jobs']}_over_{first['jobs']}": [
            (run[what] / run["jobs"]) / (first[what] / first["jobs"])
        ]
        for run in runs[1:]
        for what in ("starting_s", "operator_cpu_s", "ending_s")
    }
    for run, other in zip(runs, others, strict=bool(others)):
        if other["pods_running_s"] is None:
            continue
        start = {"pods_running_s": run["pods_running_s"], "operator_cpu_s": run["starting_cpu_s"]}
        start |= {"requests_per_job": run["requests_per_job"]}
        ratios |= {f"{what}/longshore_over_dask/{run['jobs']}": [start[what] / other[what]] for what in start}
    return ratios


def _report(runs: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> None:
    settings = {"pods_per_job": WORKERS + 1, "namespaces": NAMESPACES, "reports_per_s": REPORTS_PER_S}
    settings |= {"foreign_pods_per_job": FOREIGN_PODS_PER_JOB}
    figures = {str(run["jobs"]): run for run in runs}
    dask = {str(run["jobs"]): run for run in others}
    report("operator_scale", ratios_of(runs, others), settings, [*runs, *others], figures=figures, dask=dask)


def main() -> int:
    """Measure, and report after every fleet; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=[100, 1_000])
    parser.add_argument("--without-dask", action="store_true", help="do not compare with dask-kubernetes")
    given = parser.parse_args()
    runs: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for num_jobs in given.jobs:
        runs.append(asyncio.run(measure(num_jobs)))
        if not given.without_dask:
            others.append(asyncio.run(measure_dask(num_jobs)))
        _report(runs, others)
    return 1 if any(run["tracebacks"] for run in runs) else 0


if __name__ == "__main__":
    raise SystemExit(main())
