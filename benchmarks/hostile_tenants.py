"""One tenant among hostile ones: how long the operator takes to answer a change of a job, alone and beside 200 jobs of
every kind that is known to do harm.

The embedded API server and the operator are processes of their own; nothing runs in pods, whose coordinators are given
an address so that the operator makes the others. `lag` is from a change of the quiet tenant's spec (`suspend`, back and
forth) until its status says that this generation was observed: a watch, a read, a decision and a write. Hostile jobs
are in one namespace; `spread` puts each into one of its own, so that fairness between namespaces is no help.

Fails if a lag reaches `LIMIT_S`, or the operator is ever unhealthy or stopped.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
import yaml
from kubernetes import client, config

from benchmarks.report import report, spread
from longshore_devcluster.apiserver import ApiServer
from longshore_kube.access import from_kubeconfig
from longshore_kube.errors import ApiError
from longshore_operator.kube import RLJOBS, Kube

LIMIT_S: Final = 2.0
QUIET: Final = "quiet"
NOISY: Final = "noisy"
CRD: Final = Path(__file__).parents[1] / "crds" / "longshore.dev_rljobs.yaml"
NUM_HOSTILE: Final = 200
STATUS_WRITES_PER_S: Final = 20.0
"""Of all restless coordinators together: the server and its other clients share these cores with the operator."""
TEMPLATE_BYTES: Final = 1_000_000

SPEC: Final[dict[str, Any]] = {
    "model": {"builtin": "Tiny"},
    "data": {"builtin": "Counting"},
    "algorithm": {"steps": 3, "promptsPerStep": 4, "responsesPerPrompt": 2, "maxResponseTokens": 64},
    "storage": {"create": {"size": "1Gi"}},
    "workers": {"replicas": 2, "gpusPerPod": 0},
}


def nested(depth: int) -> dict[str, Any]:
    """An object so many levels deep."""
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def pools(count: int, replicas: int) -> dict[str, Any]:
    """So many judges with so many pods each."""
    judge = {"placement": "Pool", "modelPath": "m", "pool": {"replicas": replicas, "gpusPerPod": 0}}
    return {"functions": [{"name": f"judge-{index}", "kind": "Judge", "judge": judge} for index in range(count)]}


KINDS: Final[dict[str, dict[str, Any]]] = {
    "huge": {"suspend": True, "workers": {"template": {"metadata": {"annotations": {"a": "x" * TEMPLATE_BYTES}}}}},
    "deep": {"workers": {"template": {"spec": nested(150)}}},
    "misshapen": {"workers": {"template": {"spec": {"tolerations": 5, "containers": [{"env": ["A"]}]}}}},
    "null": {"coordinator": {"template": {"metadata": {"labels": None}, "spec": None}}},
    "crowd": {"reward": pools(32, 150)},
    "notices": {},
    "unreadable": {},
    "restless": {},
    "toggled": {},
    "large": {"workers": {"template": {"metadata": {"annotations": {"a": "x" * 30_000}}}}},
}
"""Kinds of hostile jobs: what their spec has. The names say what is done to them besides (`Neighbours`)."""


@dataclass
class Neighbours:
    """The hostile tenants: they create their jobs and never rest."""

    kube: Kube
    coordinator: Kube
    spread: bool
    names: list[str] = field(default_factory=list)
    num_writes: int = 0

    def key(self, name: str) -> tuple[str, str]:
        return (f"{NOISY}-{name}" if self.spread else NOISY), name

    async def create(self) -> None:
        for index in range(NUM_HOSTILE):
            kind = list(KINDS)[index % len(KINDS)]
            name = f"{kind}-{index}"
            with contextlib.suppress(TimeoutError):
                await self.kube.create(rljob(self.key(name), KINDS[kind]))
            self.names.append(name)

    async def never_rest(self) -> None:
        """Write statuses and specs as fast as they may, and let coordinators have addresses."""
        rng = random.Random(0)
        while True:
            began_s = time.monotonic()
            name = rng.choice(self.names)
            with contextlib.suppress(ApiError, TimeoutError, aiohttp.ClientError):
                await self._disturb(name, self.num_writes)
            self.num_writes += 1
            await asyncio.sleep(max(0.0, 1 / STATUS_WRITES_PER_S - (time.monotonic() - began_s)))

    async def _disturb(self, name: str, number: int) -> None:
        kind = name.split("-")[0]
        if kind == "notices":
            notices = [{"number": 16 * number + one + 1, "reason": "Noise", "message": "x" * 900} for one in range(16)]
            await self._report(name, {"attempt": 1, "step": number, "notices": notices})
        elif kind == "unreadable":
            # What the API server takes and the operator cannot: a kind of a round that is a number there.
            await self._report(name, {"attempt": 1, "rolloutTimes": {"switchSeconds": 1, "preemptionSeconds": 1,
                                      "roundSeconds": {"Odd": {"one": number}}}})  # fmt: skip
        elif kind == "toggled":
            await self.kube.apply(rljob(self.key(name), {"suspend": number % 2 == 0}))
        elif kind == "crowd":
            await give_address(self.kube, self.key(name))
        else:
            await self._report(name, {"attempt": 1, "step": number})

    async def _report(self, name: str, runtime: dict[str, Any]) -> None:
        namespace, name = self.key(name)
        body = {"apiVersion": "longshore.dev/v1alpha1", "kind": "RLJob", "status": {"runtime": runtime}}
        await self.coordinator.apply(body | {"metadata": {"namespace": namespace, "name": name}}, "status")


def rljob(key: tuple[str, str], spec: dict[str, Any]) -> dict[str, Any]:
    """A job with changes of its spec."""
    metadata = {"namespace": key[0], "name": key[1]}
    return {"apiVersion": "longshore.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": SPEC | spec}


async def give_address(kube: Kube, key: tuple[str, str]) -> None:
    """What a kubelet does: the coordinator runs."""
    metadata = {"namespace": key[0], "name": f"{key[1]}-coordinator"}
    status = {"phase": "Running", "podIP": "10.0.0.1"}
    await kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}, "status")


class Quiet:
    """The tenant that only wants an answer."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._suspended = False

    async def lag_s(self) -> float:
        """Seconds from a change of the spec until the status says that it was observed."""
        self._suspended = not self._suspended
        written = await self._kube.apply(rljob((QUIET, "job"), {"suspend": self._suspended}))
        generation, version = written["metadata"]["generation"], written["metadata"]["resourceVersion"]
        began_s = time.monotonic()
        async with asyncio.timeout(120):
            async for _, job in self._kube.client.watch(RLJOBS.path(QUIET), version):
                if job.get("status", {}).get("observedGeneration", 0) >= generation:
                    return time.monotonic() - began_s
        raise AssertionError("the watch ended")


class Operator:
    """The operator, its health and its memory."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        command = [sys.executable, "-m", "longshore_operator", "run", "--all-namespaces", "--runtime-image=unused"]
        command += ["--no-leader-election", f"--health-port={self._port}"]
        environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
        with log.open("a") as output:
            self._process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    async def health(self) -> str:
        """`ok`, or what `/healthz` says."""
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

    def peak_memory_mib(self) -> float:
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(text.split("VmHWM:")[1].split()[0]) / 1024

    def cpu_s(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)


@contextlib.contextmanager
def api_server(folder: Path) -> Iterator[Path]:
    """The embedded API server in a process of its own; yields its kubeconfig."""
    path = folder / "kubeconfig-path"
    child = os.fork()
    if child == 0:
        asyncio.run(_serve(folder / "data", path))
        os._exit(0)
    try:
        while not path.exists():
            time.sleep(0.05)
        yield Path(path.read_text())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


async def _serve(data: Path, told: Path) -> None:
    server = ApiServer(data)
    await server.start()
    ready = told.with_suffix(".new")
    ready.write_text(str(server.kubeconfig_path))
    ready.rename(told)
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def clients(kubeconfig: Path) -> AsyncIterator[tuple[Kube, Kube]]:
    """Of tenants, and of their coordinators."""
    access = from_kubeconfig(kubeconfig)
    async with Kube(access, "tenant") as tenant, Kube(access, "longshore-coordinator") as coordinator:
        yield tenant, coordinator


def prepare(kubeconfig: Path, spread: bool) -> None:
    """The CRD, and the namespaces."""
    api = config.new_client_from_config(str(kubeconfig))
    client.ApiextensionsV1Api(api).create_custom_resource_definition(yaml.safe_load(CRD.read_text()))
    kinds = list(KINDS)
    spaces = [f"{NOISY}-{kinds[index % len(kinds)]}-{index}" for index in range(NUM_HOSTILE)] if spread else [NOISY]
    for name in (QUIET, *spaces):
        client.CoreV1Api(api).create_namespace({"metadata": {"name": name}})


async def measure(spread: bool, num_samples: int) -> dict[str, Any]:
    """Alone, beside the hostile jobs, and after the operator began anew beside them."""
    with tempfile.TemporaryDirectory() as folder, api_server(Path(folder)) as kubeconfig:
        prepare(kubeconfig, spread)
        log = Path(folder) / "log"
        async with clients(kubeconfig) as (tenant, coordinator):
            operator = Operator(kubeconfig, log)
            await operator.until_healthy()
            quiet = Quiet(tenant)
            await quiet.lag_s()
            alone = [await quiet.lag_s() for _ in range(num_samples)]
            _tell("alone", alone)
            neighbours = Neighbours(tenant, coordinator, spread)
            refused = await _refused(tenant)
            arriving, health, lags = asyncio.create_task(neighbours.create()), [], []
            while not arriving.done():
                lags.append(await quiet.lag_s())
                health.append(await operator.health())
            await arriving
            restless = asyncio.create_task(neighbours.never_rest())
            for _ in range(num_samples):
                lags.append(await quiet.lag_s())
                health.append(await operator.health())
            _tell("beside", lags)
            memory_mib, cpu_s = operator.peak_memory_mib(), operator.cpu_s()
            operator.stop()
            operator = Operator(kubeconfig, log)
            await operator.until_healthy()
            again = [await quiet.lag_s() for _ in range(num_samples)]
            _tell("after restart", again)
            health.append(await operator.health())
            memory_mib = max(memory_mib, operator.peak_memory_mib())
            restless.cancel()
            operator.stop()
        return {
            "spread": spread,
            "alone_s": alone,
            "beside_s": lags,
            "after_restart_s": again,
            "unhealthy": [text for text in health if text != "ok"],
            "refused_by_the_api_server": refused,
            "hostile_writes": neighbours.num_writes,
            "peak_memory_mib": memory_mib,
            "cpu_s": cpu_s,
            "tracebacks": log.read_text().count("Traceback"),
        }


def _tell(when: str, lags: list[float]) -> None:
    """A run takes minutes."""
    print(f"{when}: {json.dumps(spread_ms(lags))} ms", file=sys.stderr)


async def _refused(kube: Kube) -> str:
    """What the API server says to the small spec that asks for 131,072 pods."""
    try:
        await kube.create(rljob((QUIET, "too-many"), {"reward": pools(32, 4_096)}))
    except ApiError as error:
        return error.message
    return ""


def main() -> int:
    """Measure, report; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=30)
    num_samples = parser.parse_args().samples
    runs = [asyncio.run(measure(spread, num_samples)) for spread in (False, True)]
    lags = {
        f"{'spread' if run['spread'] else 'one namespace'}/{when}": spread_ms(run[f"{when}_s"])
        for run in runs
        for when in ("alone", "beside", "after_restart")
    }
    ratios = {
        f"beside_over_alone/{'spread' if run['spread'] else 'one namespace'}": [
            statistics.median(run["beside_s"]) / statistics.median(run["alone_s"])
        ]
        for run in runs
    }
    settings = {"hostile_jobs": NUM_HOSTILE, "kinds": list(KINDS), "writes_per_s": STATUS_WRITES_PER_S}
    report("hostile_tenants", ratios, settings, runs, lag_ms=lags)
    worst_s = max(max(run["beside_s"]) for run in runs)
    broken = [run for run in runs if run["unhealthy"] or run["tracebacks"] or not run["refused_by_the_api_server"]]
    if broken:
        print(json.dumps(broken, indent=1), file=sys.stderr)
    return 0 if worst_s < LIMIT_S and not broken else 1


def spread_ms(seconds: list[float]) -> dict[str, float]:
    """Minimum, median and maximum."""
    return {name: round(1000 * value, 1) for name, value in spread(seconds).items()}


if __name__ == "__main__":
    raise SystemExit(main())
