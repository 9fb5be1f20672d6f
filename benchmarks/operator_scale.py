"""Many jobs at once: how long the operator takes until all run and have ended, and what it asks of the API server.

The embedded API server and the operator are processes of their own. Nothing runs in pods: a pretend kubelet binds each
pod and says that it runs, and in the end that its coordinator has succeeded. `starting` is from the first creation
until every job is Running, `churn` a while in which coordinators report, `restart` the start of another operator among
running jobs, and `ending` from the first coordinator that succeeds until every job is Succeeded. All processes share
the machine.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from benchmarks.hostile_jobs import rljob
from benchmarks.hostile_tenants import Operator, clients, prepare
from benchmarks.report import report
from longshore.api import names
from longshore_devcluster.apiserver import ApiServer
from longshore_devcluster.apiserver.router import Router
from longshore_kube.errors import ApiError
from longshore_kube.reflector import Changed, Listed, Reflector
from longshore_kube.resources import PODS, Json
from longshore_operator.kube import RLJOBS, KubeClient

NAMESPACES: Final = 10
WORKERS: Final = 9
"""With the coordinator, ten pods of a job."""
PARALLEL: Final = 16
"""Requests of the pretend kubelet and of users at once."""
CHURN_S: Final = 10.0
REPORTS_PER_S: Final = 20.0
DEADLINE_S: Final = 1_800.0
_LAG: Final = "longshore_operator_reconcile_lag_seconds"
_SUCCEEDED: Final = {
    "phase": "Succeeded",
    "containerStatuses": [{"name": "longshore", "state": {"terminated": {"exitCode": 0}}}],
}


@dataclass
class Fleet:
    """All jobs, their pods, and who plays the kubelet and the users."""

    kube: KubeClient
    num_jobs: int
    phases: dict[tuple[str, str], str] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    pending: "asyncio.Queue[Json]" = field(default_factory=asyncio.Queue)

    @property
    def keys(self) -> list[tuple[str, str]]:
        return [(f"team-{index % NAMESPACES}", f"job-{index}") for index in range(self.num_jobs)]

    async def create(self) -> None:
        spec = {"workers": {"replicas": WORKERS, "gpusPerPod": 0}, "reward": {"pods": 0}}
        await self._all(self.kube.create(rljob(key, spec)) for key in self.keys)

    async def succeed(self) -> None:
        await self._all(self._status(names.coordinator_pod(name), space, _SUCCEEDED) for space, name in self.keys)

    async def report(self) -> None:
        """Coordinators report, spread over all jobs."""
        end_s, number = time.monotonic() + CHURN_S, 0
        while time.monotonic() < end_s:
            number += 1
            space, name = self.keys[number % self.num_jobs]
            body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"namespace": space, "name": name}}
            await self._all([self.kube.apply(body | {"status": {"runtime": {"attempt": 1, "step": number}}}, "status")])
            await asyncio.sleep(1 / REPORTS_PER_S)

    async def until(self, phase: str) -> float:
        """Wait until every job has a phase; returns when, in monotonic time."""
        async with asyncio.timeout(DEADLINE_S):
            while sum(found == phase for found in self.phases.values()) < self.num_jobs:
                self.changed.clear()
                await self.changed.wait()
        return time.monotonic()

    async def follow_jobs(self) -> None:
        async for _, job in self._watch(RLJOBS.path(None)):
            key = job["metadata"]["namespace"], job["metadata"]["name"]
            self.phases[key] = (job.get("status") or {}).get("phase", "")
            self.changed.set()

    async def follow_pods(self) -> None:
        async for _, pod in self._watch(PODS.path(None)):
            self.pending.put_nowait(pod)

    async def kubelet(self) -> None:
        """Bind what is new, let it run, and end what is being deleted."""
        while True:
            pod = await self.pending.get()
            metadata = pod["metadata"]
            with contextlib.suppress(ApiError):
                if "deletionTimestamp" in metadata:
                    await self._remove(metadata)
                elif not pod["spec"].get("nodeName"):
                    await self._start(metadata)

    async def _start(self, metadata: Json) -> None:
        space, name = metadata["namespace"], metadata["name"]
        target = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"name": "node-0"}}
        await self.kube.client.request("POST", PODS.path(space, name, "binding"), body=target)
        ready = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
        await self._status(name, space, {"phase": "Running", "podIP": "10.0.0.1", "conditions": ready})

    async def _remove(self, metadata: Json) -> None:
        path = PODS.path(metadata["namespace"], metadata["name"])
        await self.kube.client.request("DELETE", path, body={"gracePeriodSeconds": 0})

    async def _status(self, name: str, space: str, status: Json) -> None:
        metadata = {"namespace": space, "name": name}
        await self.kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}, "status")

    async def _watch(self, path: str) -> AsyncIterator[tuple[str, Json]]:
        """Every object, and every change."""
        async for news in Reflector(self.kube.client, path, lambda found: found).changes():
            for change in [Changed("ADDED", one) for one in news.items] if isinstance(news, Listed) else [news]:
                yield change.kind, change.item

    async def _all(self, calls: Any) -> None:
        """So many at once."""
        slots = asyncio.Semaphore(PARALLEL)

        async def one(call: Any) -> None:
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
        """Reconciliations by the bucket of their lag, in seconds."""
        name = f"{_LAG}_bucket"
        return {float(one.labels["le"]): one.value for one in await self.metrics() if one.name == name}

    async def until_idle(self, num_jobs: int) -> None:
        """Every job had a pass, and none is due."""
        await self.until_healthy()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = {one.name: one.value for one in await self.metrics() if not one.labels}
                if found[f"{_LAG}_count"] >= num_jobs and found["longshore_operator_queue_depth"] == 0:
                    return
                await asyncio.sleep(0.1)


@contextlib.contextmanager
def counting_api_server(folder: Path, num_requests: "Synchronized[int]") -> Iterator[tuple[Path, int]]:
    """The embedded API server in a process of its own; yields its kubeconfig and its process id."""
    path = folder / "kubeconfig-path"
    child = os.fork()
    if child == 0:
        asyncio.run(_serve(folder / "data", path, num_requests))
        os._exit(0)
    try:
        while not path.exists():
            time.sleep(0.05)
        yield Path(path.read_text()), child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


async def _serve(data: Path, address_file: Path, num_requests: "Synchronized[int]") -> None:
    serve = Router.serve

    async def counted(router: Router, request: Any) -> Any:
        num_requests.value += request.headers.get("User-Agent", "").startswith(names.OPERATOR_FIELD_MANAGER)
        return await serve(router, request)

    Router.serve = counted  # type: ignore[assignment, method-assign]
    server = ApiServer(data)
    await server.start()
    ready = address_file.with_suffix(".new")
    ready.write_text(str(server.kubeconfig_path))
    ready.rename(address_file)
    await asyncio.Event().wait()


async def measure(num_jobs: int) -> dict[str, Any]:
    """All of it once."""
    num_requests = multiprocessing.Value("q")
    with tempfile.TemporaryDirectory() as folder, counting_api_server(Path(folder), num_requests) as (config, server):
        prepare(config, [f"team-{index}" for index in range(NAMESPACES)])
        log = Path(folder) / "log"
        async with clients(config) as (kube, _):
            operator = ScrapedOperator(config, log)
            await operator.until_healthy()
            fleet = Fleet(kube, num_jobs)
            tasks = [asyncio.create_task(one) for one in (fleet.follow_jobs(), fleet.follow_pods())]
            tasks += [asyncio.create_task(fleet.kubelet()) for _ in range(PARALLEL)]
            before, began_s = num_requests.value, time.monotonic()
            await fleet.create()
            running_s = await fleet.until("Running") - began_s
            per_job = (num_requests.value - before) / num_jobs
            print(f"Running after {running_s:.1f} s, {per_job:.1f} requests a job", file=sys.stderr)
            lags = await operator.lags()
            await fleet.report()
            churn = quantiles(lags, await operator.lags())
            cpu_s, memory_mib = operator.cpu_s(), operator.peak_memory_mib()
            operator.stop()
            before, recovery_started_s = num_requests.value, time.monotonic()
            operator = ScrapedOperator(config, log)
            await operator.until_idle(num_jobs)
            restart = {
                "seconds": time.monotonic() - recovery_started_s,
                "requests_per_job": (num_requests.value - before) / num_jobs,
            }
            ending_s = time.monotonic()
            await fleet.succeed()
            succeeded_s = await fleet.until("Succeeded") - ending_s
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            memory_mib = max(memory_mib, operator.peak_memory_mib())
            server_cpu = psutil.Process(server).cpu_times()
            operator.stop()
        return {
            "jobs": num_jobs,
            "starting_s": running_s,
            "requests_per_job": per_job,
            "churn_lag_s": churn,
            "restart": restart,
            "ending_s": succeeded_s,
            "operator_cpu_s": cpu_s,
            "operator_peak_memory_mib": memory_mib,
            "server_cpu_s": server_cpu.user + server_cpu.system,
            "tracebacks": log.read_text().count("Traceback"),
        }


def quantiles(before: dict[float, float], after: dict[float, float]) -> dict[str, float]:
    """Upper bounds of the median and of the 99th percentile, from the buckets of a histogram."""
    counts = {limit: after[limit] - before.get(limit, 0.0) for limit in sorted(after)}
    total = max(counts.values())
    return {
        name: next(limit for limit, count in counts.items() if count >= share * total)
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }


def main() -> int:
    """Measure, report; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=[100, 1_000])
    runs = [asyncio.run(measure(num_jobs)) for num_jobs in parser.parse_args().jobs]
    first = runs[0]
    ratios = {
        f"{what}_per_job/{run['jobs']}_over_{first['jobs']}": [
            (run[what] / run["jobs"]) / (first[what] / first["jobs"])
        ]
        for run in runs[1:]
        for what in ("starting_s", "operator_cpu_s", "ending_s")
    }
    settings = {"pods_per_job": WORKERS + 1, "namespaces": NAMESPACES, "reports_per_s": REPORTS_PER_S}
    report("operator_scale", ratios, settings, runs, figures={str(run["jobs"]): run for run in runs})
    return 1 if any(run["tracebacks"] for run in runs) else 0


if __name__ == "__main__":
    raise SystemExit(main())
