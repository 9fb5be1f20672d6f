"""Create jobs of hostile tenants, of every kind that is known to do harm, and disturb them as their owners would."""

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from longshore_kube.errors import ApiError
from longshore_operator.kube import KubeClient

NOISY: Final = "noisy"
NUM_RESTLESS: Final = 200
"""Number of jobs of all kinds but the huge ones, whose owners or coordinators never rest."""
NUM_HUGE: Final = 180
"""Number of suspended jobs that nobody touches: they cost memory, and time when the operator starts."""
TEMPLATE_BYTES: Final = 1_000_000

SPEC: Final[dict[str, Any]] = {
    "model": {"builtin": "Tiny"},
    "data": {"builtin": "Counting"},
    "algorithm": {"steps": 3, "promptsPerStep": 4, "responsesPerPrompt": 2, "maxResponseTokens": 64},
    "storage": {"create": {"size": "1Gi"}},
    "workers": {"replicas": 2, "gpusPerPod": 0},
}


def nested(depth: int) -> dict[str, Any]:
    """Return an object that is `depth` levels deep."""
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def pools(count: int, replicas: int) -> dict[str, Any]:
    """Return a reward section with `count` judges of `replicas` pods each."""
    judge = {"placement": "Pool", "modelPath": "m", "pool": {"replicas": replicas, "gpusPerPod": 0}}
    return {"functions": [{"name": f"judge-{index}", "kind": "Judge", "judge": judge} for index in range(count)]}


HUGE: Final = {"suspend": True, "workers": {"template": {"metadata": {"annotations": {"a": "x" * TEMPLATE_BYTES}}}}}
KINDS: Final[dict[str, dict[str, Any]]] = {
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
"""Specs of restless jobs by kind. The names say what is done to them besides (`Neighbours`)."""


@dataclass
class Neighbours:
    """The hostile tenants: they create their jobs and never rest."""

    kube: KubeClient
    coordinator: KubeClient
    is_spread: bool
    """Whether each job is in a namespace of its own."""
    writes_per_s: float
    """Most writes per second of all tenants: the server and its other clients share the machine with the operator."""
    num_writes: int = 0

    @property
    def names(self) -> list[str]:
        """Names of the restless jobs."""
        return [f"{list(KINDS)[index % len(KINDS)]}-{index}" for index in range(NUM_RESTLESS)]

    @property
    def namespaces(self) -> list[str]:
        """Namespaces of all hostile jobs."""
        return [NOISY, *(self.key(name)[0] for name in self.names)] if self.is_spread else [NOISY]

    def key(self, name: str) -> tuple[str, str]:
        """Return namespace and name of a job."""
        return (f"{NOISY}-{name}" if self.is_spread else NOISY), name

    async def create(self) -> None:
        """Create all jobs, the huge ones between the others."""
        for index, name in enumerate(self.names):
            with contextlib.suppress(TimeoutError):
                await self.kube.create(rljob(self.key(name), KINDS[name.split("-")[0]]))
            if index < NUM_HUGE:
                with contextlib.suppress(TimeoutError):
                    await self.kube.create(rljob((NOISY, f"huge-{index}"), HUGE))

    async def never_rest(self) -> None:
        """Write statuses and specs, one after the other, and let coordinators have addresses."""
        rng, names = random.Random(0), self.names
        while True:
            began_s = time.monotonic()
            with contextlib.suppress(ApiError, TimeoutError, aiohttp.ClientError):
                await self._disturb(rng.choice(names), self.num_writes)
            self.num_writes += 1
            await asyncio.sleep(max(0.0, 1 / self.writes_per_s - (time.monotonic() - began_s)))

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
    """Return a job with changes of its spec."""
    metadata = {"namespace": key[0], "name": key[1]}
    return {"apiVersion": "longshore.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": SPEC | spec}


async def give_address(kube: KubeClient, key: tuple[str, str]) -> None:
    """Set the status of a coordinator's pod that runs, as a kubelet does."""
    metadata = {"namespace": key[0], "name": f"{key[1]}-coordinator"}
    status = {"phase": "Running", "podIP": "10.0.0.1"}
    await kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}, "status")
