"""Leader election on a Lease: one operator decides, others stand by.

The holder renews; a candidate takes over only after it has itself seen the Lease unchanged for its whole duration, so
that clocks of different machines are never compared.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import structlog

from longshore_kube.errors import KubeError
from longshore_kube.times import rfc3339_micro
from longshore_operator.kube import KubeClient

LEASE_DURATION_S = 15
RENEW_DEADLINE_S = 10
RETRY_PERIOD_S = 2

log = structlog.get_logger(__name__)


class LeadershipLost(Exception):
    """The Lease could not be renewed in time: this process must stop deciding at once."""


class Election:
    """A candidate for one Lease."""

    def __init__(
        self, kube: KubeClient, namespace: str, name: str, identity: str, clock: Callable[[], datetime]
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._seen: tuple[str, float] | None = None
        self._other = ""
        """Identity of another holder of the Lease, if it had one when it was last read."""

    async def acquire(self) -> None:
        """Wait until this process leads."""
        while not await self._try():  # noqa: ASYNC110 - the Lease lies elsewhere, it has to be asked
            await asyncio.sleep(RETRY_PERIOD_S)
        log.info("leading", lease=f"{self._namespace}/{self._name}", identity=self._identity)

    async def hold(self) -> None:
        """Renew for ever.

        Raises:
            LeadershipLost: someone else leads, or renewing failed for too long.
        """
        renewed_s = time.monotonic()
        while True:
            await asyncio.sleep(RETRY_PERIOD_S)
            asked_s = time.monotonic()
            if await self._try():
                renewed_s = asked_s  # The answer may come long after others have seen the renewal.
            elif self._other:
                raise LeadershipLost(f"Lease {self._namespace}/{self._name} is held by {self._other}")
            elif time.monotonic() - renewed_s > RENEW_DEADLINE_S:
                raise LeadershipLost(f"Lease {self._namespace}/{self._name} was not renewed in {RENEW_DEADLINE_S} s")

    async def release(self) -> None:
        """Release the Lease, so that the next candidate need not wait until it expires."""
        lease = await self._kube.get("Lease", self._namespace, self._name)
        if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
            lease["spec"] = lease["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._kube.replace(lease)

    async def _try(self) -> bool:
        self._other = ""  # Of a try that fails nothing is known.
        try:
            async with asyncio.timeout(RENEW_DEADLINE_S / 2):
                return await self._take_or_renew()
        except (KubeError, TimeoutError) as error:
            log.warning("leader election is disturbed", error=repr(error))
            return False

    async def _take_or_renew(self) -> bool:
        lease = await self._kube.get("Lease", self._namespace, self._name)
        now = rfc3339_micro(self._clock())
        if lease is None:
            created = await self._kube.create(
                {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"namespace": self._namespace, "name": self._name},
                    "spec": self._claim({}, now),
                }
            )
            return created is not None
        spec = lease["spec"]
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self._identity) and not self._expired(lease):
            self._other = holder
            return False
        # The resource version makes this fail if another candidate was faster.
        lease["spec"] = self._claim(spec, now)
        await self._kube.replace(lease)
        return True

    def _claim(self, spec: dict[str, Any], now: str) -> dict[str, Any]:
        takes_over = spec.get("holderIdentity") != self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "acquireTime": now if takes_over else spec.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": spec.get("leaseTransitions", 0) + (1 if takes_over and spec else 0),
        }

    def _expired(self, lease: dict[str, Any]) -> bool:
        """Return whether this process has watched the Lease unchanged for its whole duration."""
        spec = lease["spec"]
        version, now_s = str(lease["metadata"]["resourceVersion"]), time.monotonic()
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now_s)
            return False
        return now_s - self._seen[1] > float(spec.get("leaseDurationSeconds", LEASE_DURATION_S))
