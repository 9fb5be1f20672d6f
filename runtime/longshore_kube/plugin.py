"""Credential plugins: programs that issue tokens or client certificates (`client.authentication.k8s.io`)."""

import asyncio
import json
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longshore_kube.errors import AccessError
from longshore_kube.times import parse_time

_VERSIONS = frozenset({"client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"})
_LIMIT_S = 60.0
"""Seconds after which a plugin counts as hanging, for example because it waits for input."""
_CLUSTER_FIELDS = (
    "server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Issued:
    """Credentials of a plugin."""

    token: str | None = None
    key_pair: bytes | None = None
    """Client key and certificate (PEM)."""
    expires_s: float = math.inf
    """Unix time."""


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """How to run a plugin."""

    command: tuple[str, ...]
    api_version: str
    environment: tuple[tuple[str, str], ...] = ()
    interactive_mode: str = "IfAvailable"
    cluster: str = ""
    """JSON of the cluster, for plugins that ask for it."""
    install_hint: str = ""

    async def run(self) -> Issued:
        """Run it once.

        Raises:
            AccessError: it gives no credentials; the message quotes what it says.
        """
        is_terminal = sys.stdin is not None and sys.stdin.isatty()
        try:
            if self.interactive_mode == "Always" and not is_terminal:
                raise ValueError("asks questions and needs a terminal")
            return self._read(await self._output(is_terminal and self.interactive_mode != "Never"))
        except (OSError, ValueError) as error:
            trouble = str(error)
            if isinstance(error, OSError):
                trouble = "; ".join(filter(None, [f"cannot be run: {error.strerror}", *self.install_hint.split("\n")]))
            raise AccessError(f"the credential plugin {self.command[0]} {trouble}") from error

    async def _output(self, is_interactive: bool) -> bytes:
        spec = {"interactive": is_interactive} | ({"cluster": json.loads(self.cluster)} if self.cluster else {})
        info = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        process = await asyncio.create_subprocess_exec(
            *self.command,
            env=os.environ | dict(self.environment) | {"KUBERNETES_EXEC_INFO": json.dumps(info)},
            # A person answers the plugin's questions, which it asks on standard error.
            stdin=None if is_interactive else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if is_interactive else asyncio.subprocess.PIPE,
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), None if is_interactive else _LIMIT_S)
        except TimeoutError as error:
            raise ValueError(f"did not end within {_LIMIT_S:.0f} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            message = " ".join((errors or b"").decode(errors="replace").split()) or "no reason given"
            raise ValueError(f"failed with exit code {process.returncode}: {message[-500:]}")
        return output

    def _read(self, output: bytes) -> Issued:
        try:
            answer = json.loads(output)
            status = answer["status"]
            token, expires = status.get("token"), status.get("expirationTimestamp")
            certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
            key_pair = f"{key}\n{certificate}".encode() if certificate and key else None
            expires_s = parse_time(expires).timestamp() if expires else math.inf
            if (answer["apiVersion"], answer["kind"]) != (self.api_version, "ExecCredential"):
                raise ValueError(f"it is {answer['kind']} of {answer['apiVersion']}, not of {self.api_version}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"answers with what is no ExecCredential: {error}") from error
        if not token and not key_pair:
            raise ValueError("answers with neither a token nor a client certificate with its key")
        return Issued(token, key_pair, expires_s)


def exec_plugin(entry: dict[str, Any], cluster: dict[str, Any], path: Path) -> ExecPlugin:
    """Return the plugin of a kubeconfig's user.

    Raises:
        AccessError: the entry is not complete, or of a version that is not supported.
    """
    version, command = entry.get("apiVersion"), str(entry.get("command") or "")
    if version not in _VERSIONS:
        raise AccessError(f"{path}: exec.apiVersion {version!r} is not supported; use one of {sorted(_VERSIONS)}")
    if not command:
        raise AccessError(f"{path}: exec.command is missing")
    if os.sep in command:
        command = str(path.parent / command)
    return ExecPlugin(
        (command, *map(str, entry.get("args") or ())),
        version,
        tuple((str(item["name"]), str(item["value"])) for item in entry.get("env") or ()),
        entry.get("interactiveMode") or "IfAvailable",
        json.dumps(_cluster_info(cluster)) if entry.get("provideClusterInfo") else "",
        entry.get("installHint") or "",
    )


def _cluster_info(cluster: dict[str, Any]) -> dict[str, Any]:
    info = {name: cluster[name] for name in _CLUSTER_FIELDS if name in cluster}
    for extension in cluster.get("extensions") or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.get("extension")
    return info
