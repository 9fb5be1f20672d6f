"""Startup, readiness and liveness probes: how one is tried and what a series of results means."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from longshore_kube.resources import Json

Exec = Callable[[list[str], float], Awaitable[tuple[int, str]]]
"""Runs a command in the container within a time limit in seconds: (exit code, output)."""


@dataclass(frozen=True)
class Outcome:
    """The result of one attempt."""

    success: bool
    message: str = ""


@dataclass(frozen=True)
class Timing:
    """The numbers of a probe, with Kubernetes' defaults."""

    initial_delay_s: float
    period_s: float
    timeout_s: float
    success_threshold: int
    failure_threshold: int

    @classmethod
    def of(cls, probe: Json) -> "Timing":
        """Read them from a probe."""
        return cls(
            initial_delay_s=probe.get("initialDelaySeconds") or 0,
            period_s=probe.get("periodSeconds") or 10,
            timeout_s=probe.get("timeoutSeconds") or 1,
            success_threshold=probe.get("successThreshold") or 1,
            failure_threshold=probe.get("failureThreshold") or 3,
        )


class Verdict:
    """What the attempts so far say: None until a threshold is reached."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._last: bool | None = None
        self._num_alike = 0

    def observe(self, success: bool) -> bool | None:
        """Count one attempt; the verdict once enough attempts in a row agree, else None."""
        self._num_alike = self._num_alike + 1 if success is self._last else 1
        self._last = success
        needed = self._timing.success_threshold if success else self._timing.failure_threshold
        return success if self._num_alike >= needed else None


async def attempt(probe: Json, container: Json, pod_ip: str, execute: Exec) -> Outcome:
    """Try a probe once."""
    timeout_s = Timing.of(probe).timeout_s
    try:
        if "httpGet" in probe:
            return await http_get(probe["httpGet"], container, pod_ip, timeout_s)
        if "tcpSocket" in probe:
            host = probe["tcpSocket"].get("host") or pod_ip
            return await _tcp(host, port_number(probe["tcpSocket"]["port"], container), timeout_s)
        if "exec" in probe:
            code, output = await execute(probe["exec"].get("command") or [], timeout_s)
            return Outcome(code == 0, output.strip())
    except ValueError as error:
        return Outcome(False, str(error))
    return Outcome(False, "the embedded cluster has httpGet, tcpSocket and exec probes only")


def port_number(port: int | str, container: Json) -> int:
    """Return the number of a port given by number or by name.

    Raises:
        ValueError: the container does not declare the name.
    """
    if isinstance(port, int) or port.isdigit():
        return int(port)
    for declared in container.get("ports") or []:
        if declared.get("name") == port:
            return int(declared["containerPort"])
    raise ValueError(f"the container declares no port named {port!r}")


async def http_get(action: Json, container: Json, pod_ip: str, timeout_s: float) -> Outcome:
    """Send one GET of a probe or a lifecycle handler; success is a status of 200 to 399."""
    host = action.get("host") or pod_ip
    scheme = (action.get("scheme") or "HTTP").lower()
    path = "/" + (action.get("path") or "/").lstrip("/")
    url = f"{scheme}://{host}:{port_number(action['port'], container)}{path}"
    headers = {entry["name"]: entry["value"] for entry in action.get("httpHeaders") or []}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
            # As the kubelet does, certificates are not verified and redirects elsewhere are not followed.
            session.get(url, headers=headers, ssl=False, allow_redirects=False) as response,
        ):
            success = 200 <= response.status < 400
            return Outcome(success, "" if success else f"HTTP probe failed with statuscode: {response.status}")
    except TimeoutError:
        return Outcome(False, f'Get "{url}": no answer within {timeout_s:g} s')
    except (aiohttp.ClientError, OSError) as error:
        return Outcome(False, f'Get "{url}": {error}')


async def _tcp(host: str, port: int, timeout_s: float) -> Outcome:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), timeout_s)
    except TimeoutError:
        return Outcome(False, f"dial tcp {host}:{port}: no answer within {timeout_s:g} s")
    except OSError as error:
        return Outcome(False, f"dial tcp {host}:{port}: {error}")
    writer.close()
    return Outcome(True)
