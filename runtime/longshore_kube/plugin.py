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
"""A plugin that nobody can answer and that takes longer hangs."""
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
            AccessError: it gives no credentials; the message is a sentence, where it has one its own.
        """
        is_terminal = sys.stdin is not None and sys.stdin.isatty()
        if self.interactive_mode == "Always" and not is_terminal:
            raise AccessError(f"the credential plugin {self.command[0]} asks questions and needs a terminal")
        is_interactive = is_terminal and self.interactive_mode != "Never"
        code, output, errors = await self._finished(is_interactive)
        if code != 0:
            said = " ".join(errors.decode(errors="replace").split()[-60:]) or "no reason given"
            raise AccessError(f"the credential plugin {self.command[0]} failed with exit code {code}: {said}")
        return self._read(output)

    async def _finished(self, is_interactive: bool) -> tuple[int, bytes, bytes]:
        spec: dict[str, Any] = {"interactive": is_interactive}
        if self.cluster:
            spec["cluster"] = json.loads(self.cluster)
        info = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                env=os.environ | dict(self.environment) | {"KUBERNETES_EXEC_INFO": json.dumps(info)},
                # A person answers the plugin's questions, which it asks on standard error.
                stdin=None if is_interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if is_interactive else asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = f"; {' '.join(self.install_hint.split())}" if self.install_hint else ""
            raise AccessError(
                f"the credential plugin {self.command[0]} cannot be started: {error.strerror}{hint}"
            ) from error
        try:
            async with asyncio.timeout(None if is_interactive else _LIMIT_S):
                output, errors = await process.communicate()
        except TimeoutError as error:
            raise AccessError(f"the credential plugin {self.command[0]} did not end within {_LIMIT_S:.0f} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None, "communicate waits for the end"
        return process.returncode, output, errors or b""

    def _read(self, output: bytes) -> Issued:
        try:
            answer = json.loads(output)
            if (answer["apiVersion"], answer["kind"]) != (self.api_version, "ExecCredential"):
                raise ValueError(f"it is {answer['kind']} of {answer['apiVersion']}, not of {self.api_version}")
            status = answer["status"]
            token, expires = status.get("token"), status.get("expirationTimestamp")
            certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
            if not token and not (certificate and key):
                raise ValueError("it has neither a token nor a client certificate with its key")
            key_pair = f"{key}\n{certificate}".encode() if certificate and key else None
            return Issued(token, key_pair, parse_time(expires).timestamp() if expires else math.inf)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise AccessError(
                f"the answer of the credential plugin {self.command[0]} is no ExecCredential: {error}"
            ) from error


def exec_plugin(entry: dict[str, Any], cluster: dict[str, Any], path: Path) -> ExecPlugin:
    """The plugin of a kubeconfig's user.

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
