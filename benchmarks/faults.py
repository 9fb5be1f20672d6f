"""Measure faults of the operator and of the API server under many jobs.

Does every job end well, and how soon after the fault?

The embedded API server and the operator are processes of their own, and a pretend kubelet says that pods run. For each
fault, jobs are created while it lasts; `running_s` is the time from its end until all of them are Running. Then it
comes back while their coordinators succeed; `succeeded_s` is the time from its end until all are Succeeded. The run
fails if a job needs a second attempt, if a pod is created twice, or if one is left that no job wants.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from benchmarks.hostile_jobs import rljob
from benchmarks.hostile_tenants import prepare
from benchmarks.local_api_server import LocalApiServer, Serve
from benchmarks.pretend_kubelet import PretendKubelet, background
from benchmarks.report import report
from longshore_devcluster.apiserver.router import Router
from longshore_kube.access import from_kubeconfig
from longshore_kube.errors import KubeError
from longshore_kube.resources import PODS, Json
from longshore_operator.kube import RLJOBS, KubeClient

NAMESPACES: Final = 5
WORKERS: Final = 2
FAULT_S: Final = 20.0
DEADLINE_S: Final = 600.0
KILL_EVERY_S: Final = 5.0
CUT_AFTER_S: Final = 1.0
DELAYS_S: Final = (0.2, 1.0)
ERROR_SHARE: Final = 0.2
OPERATOR: Final = "longshore-operator"
LEASE_NAMESPACE: Final = "team-0"
FAULTS: Final = ("none", "operator killed", "leader killed", "server killed", "slow", "errors", "watches cut")


def error_answer(rng: random.Random, method: str) -> web.Response:
    """Return the answer of an API server that is overloaded, or where another client was faster."""
    code, reason = rng.choice(
        [(429, "TooManyRequests"), (500, "InternalError"), (409, "Conflict")][: 2 + _writes(method)]
    )
    status = {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": f"injected {reason}"}
    return web.json_response(status, status=code, headers={"Retry-After": "1"} if code == 429 else {})


def _writes(method: str) -> bool:
    return method in {"POST", "PUT", "PATCH"}


def with_faults(serve: Serve, fault: "Synchronized[int]", rng: random.Random) -> Serve:
    """Disturb the requests of the operator for as long as a fault is on."""

    async def disturbed(router: Router, request: web.Request) -> web.StreamResponse:
        kind = FAULTS[fault.value] if request.headers.get("User-Agent", "").startswith(OPERATOR) else "none"
        if kind == "slow":
            await asyncio.sleep(rng.uniform(*DELAYS_S))
        if kind == "errors" and rng.random() < ERROR_SHARE:
            if rng.random() < 0.5 and "watch" not in request.query:
                await serve(router, request)  # It is carried out, and the answer is lost.
                return error_answer(rng, "GET")
            return error_answer(rng, request.method)
        if kind == "watches cut" and "watch" in request.query:
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(serve(router, request), CUT_AFTER_S)
            assert request.transport is not None, "the watch was being answered"
            request.transport.abort()
            raise asyncio.CancelledError
        return await serve(router, request)

    return disturbed


class FaultyServer(LocalApiServer):
    """An API server whose fault can be set."""

    def __init__(self, folder: Path) -> None:
        self.fault: Synchronized[int] = multiprocessing.Value("q")
        super().__init__(folder, lambda serve: with_faults(serve, self.fault, random.Random(1)))


@dataclass
class SupervisedOperator:
    """An operator that is started again whenever it ends, as a kubelet does."""

    kubeconfig: Path
    log: Path
    is_candidate: bool = False
    """Whether another operator runs too, and one of them leads."""
    num_starts: int = 0
    process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Run until cancelled."""
        command = ["-m", "longshore_operator", "run", "--all-namespaces", "--runtime-image=unused"]
        command += ["--health-port=0"]
        command += [f"--lease-namespace={LEASE_NAMESPACE}"] if self.is_candidate else ["--no-leader-election"]
        try:
            while True:
                with self.log.open("a") as output:
                    self.process = await asyncio.create_subprocess_exec(
                        sys.executable, *command, env=os.environ | {"KUBECONFIG": str(self.kubeconfig)},
                        stdout=output, stderr=output,
                    )  # fmt: skip
                self.num_starts += 1
                await self.process.wait()
        finally:
            self.kill()
            if self.process is not None:
                await self.process.wait()

    def kill(self) -> None:
        """Kill the operator, so that it cannot clean up."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()


async def _disturb(
    kind: str, server: FaultyServer, operators: Sequence[SupervisedOperator], kube: KubeClient
) -> list[float]:
    """Keep one fault up for its time; return the seconds until another operator led, for each that was killed."""
    end_s, failovers_s = time.monotonic() + FAULT_S, []
    server.fault.value = FAULTS.index(kind)
    while (left_s := end_s - time.monotonic()) > 0:
        await asyncio.sleep(min(left_s, KILL_EVERY_S))
        if kind == "operator killed":
            operators[0].kill()
        if kind == "leader killed":
            failovers_s.append(await _fail_over(operators, kube))
        if kind == "server killed":
            server.kill()
            server.start()
    server.fault.value = 0
    return failovers_s


async def _fail_over(operators: Sequence[SupervisedOperator], kube: KubeClient) -> float:
    """Kill the operator that leads; return the seconds until another one does."""
    while not (leader := await _leader(kube)):  # noqa: ASYNC110 - it is another process
        await asyncio.sleep(0.1)
    began_s = time.monotonic()
    for operator in operators:
        if operator.process is not None and leader.endswith(f"-{operator.process.pid}"):
            operator.kill()
    while await _leader(kube) in ("", leader):  # noqa: ASYNC110 - it is another process
        await asyncio.sleep(0.1)
    return time.monotonic() - began_s


async def _leader(kube: KubeClient) -> str:
    lease = await kube.get("Lease", LEASE_NAMESPACE, OPERATOR)
    return lease["spec"].get("holderIdentity") or "" if lease is not None else ""


def measure(kind: str, num_jobs: int) -> dict[str, Any]:
    """Measure all jobs, from their creation to their end, with one fault."""
    with tempfile.TemporaryDirectory() as folder, FaultyServer(Path(folder)) as server:
        prepare(server.kubeconfig, [f"team-{index}" for index in range(NAMESPACES)])
        log = Path(folder) / "log"
        found = asyncio.run(_run(kind, num_jobs, server, log))
        return {**found, "tracebacks": log.read_text().count("Traceback")}


async def _run(kind: str, num_jobs: int, server: FaultyServer, log: Path) -> dict[str, Any]:
    keys = [(f"team-{index % NAMESPACES}", f"job-{index}") for index in range(num_jobs)]
    async with KubeClient(from_kubeconfig(server.kubeconfig), "tenant") as kube:
        kubelet, num_operators = PretendKubelet(kube.client), 2 if kind == "leader killed" else 1
        operators = [SupervisedOperator(server.kubeconfig, log, num_operators > 1) for _ in range(num_operators)]
        async with background(kubelet.run(), *(operator.run() for operator in operators)):
            fault = asyncio.create_task(_disturb(kind, server, operators, kube))
            for key in keys:
                await _create(kube, key)
            failovers_s = await fault
            running_s = await _seconds_until("Running", kube, num_jobs)
            fault = asyncio.create_task(_disturb(kind, server, operators, kube))
            for namespace, job in keys:
                await kubelet.succeed(namespace, job)
            failovers_s += await fault
            succeeded_s = await _seconds_until("Succeeded", kube, num_jobs)
            await _until_alone(kube, num_jobs)
            jobs = await _jobs(kube)
        return {
            "fault": kind,
            "jobs": num_jobs,
            "running_s": running_s,
            "succeeded_s": succeeded_s,
            "failovers_s": failovers_s,
            "operator_starts": sum(operator.num_starts for operator in operators),
            "extra_pods": len(kubelet.pods) - num_jobs * (WORKERS + 1),
            "extra_attempts": sum(job["status"]["attempt"] - 1 for job in jobs),
            "failures": sum(job["status"].get("failures", 0) for job in jobs),
        }


async def _create(kube: KubeClient, key: tuple[str, str]) -> None:
    spec = {"workers": {"replicas": WORKERS, "gpusPerPod": 0}, "reward": {"pods": 0}}
    while True:
        with contextlib.suppress(KubeError):
            await kube.create(rljob(key, spec))
            return
        await asyncio.sleep(0.2)


async def _jobs(kube: KubeClient) -> list[Json]:
    while True:
        with contextlib.suppress(KubeError):
            return await kube.client.items(RLJOBS.path(None))
        await asyncio.sleep(0.2)


async def _seconds_until(phase: str, kube: KubeClient, num_jobs: int) -> float:
    began_s = time.monotonic()
    async with asyncio.timeout(DEADLINE_S):
        while sum((job.get("status") or {}).get("phase") == phase for job in await _jobs(kube)) < num_jobs:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.5)
    return time.monotonic() - began_s


async def _until_alone(kube: KubeClient, num_jobs: int) -> None:
    """Wait until only the coordinators that have ended are left, for their logs."""
    async with asyncio.timeout(DEADLINE_S):
        while len(pods := await kube.client.items(PODS.path(None))) != num_jobs:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.5)
    assert all(pod["status"]["phase"] == "Succeeded" for pod in pods), "coordinators have ended"


def main() -> int:
    """Measure, report; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--faults", nargs="+", default=FAULTS, choices=FAULTS)
    given = parser.parse_args()
    runs = []
    for kind in given.faults:
        runs.append(measure(kind, given.jobs))
        print(runs[-1], file=sys.stderr)
    settings: dict[str, Any] = {"pods_per_job": WORKERS + 1, "fault_s": FAULT_S, "kill_every_s": KILL_EVERY_S}
    settings |= {"delays_s": DELAYS_S, "error_share": ERROR_SHARE, "cut_after_s": CUT_AFTER_S}
    report("faults", {}, settings, runs, figures={run["fault"]: run for run in runs})
    return 1 if any(run["extra_pods"] or run["extra_attempts"] or run["failures"] for run in runs) else 0


if __name__ == "__main__":
    raise SystemExit(main())
