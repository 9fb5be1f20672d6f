"""Where an API server is and who asks: from kubeconfig files, or from the service account of a pod."""

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from longshore_kube.errors import AccessError
from longshore_kube.plugin import ExecPlugin, exec_plugin

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Access:
    """Address of an API server and the credentials for it."""

    server: str
    namespace: str = "default"
    ca: bytes | None = None
    """Certificate authority (PEM); None: the system's."""
    insecure: bool = False
    """Do not verify the server's certificate."""
    server_name: str | None = None
    """Name to verify in the server's certificate, where it is not the address."""
    proxy_url: str | None = None
    token: str | None = None
    token_file: Path | None = None
    """Read before each request: tokens of service accounts rotate."""
    certificate: bytes | None = None
    """Client certificate (PEM)."""
    key: bytes | None = None
    plugin: ExecPlugin | None = None
    """Program that issues credentials; it goes before all others."""


def load(environment: Mapping[str, str] = os.environ) -> Access:
    """Return access data from $KUBECONFIG, else the pod's service account, else ~/.kube/config.

    Raises:
        AccessError: nothing was found, or what was found cannot be used.
    """
    if environment.get("KUBECONFIG"):
        return from_kubeconfig(environment["KUBECONFIG"])
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environment)
    default = Path(environment.get("HOME", "/")) / ".kube" / "config"
    if default.exists():
        return from_kubeconfig(default)
    raise AccessError("no cluster: set KUBECONFIG, or run in a pod with a service account token")


def in_cluster(environment: Mapping[str, str] = os.environ, folder: Path = _SERVICE_ACCOUNT) -> Access:
    """Return access data of the pod that this process runs in. Proxies are for what is outside the cluster.

    Raises:
        AccessError: this is no pod with a service account.
    """
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise AccessError("this process does not run in a pod: KUBERNETES_SERVICE_HOST is not set")
    try:
        return Access(
            server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            namespace=(folder / "namespace").read_text().strip(),
            ca=(folder / "ca.crt").read_bytes(),
            token_file=folder / "token",
        )
    except OSError as error:
        raise AccessError(f"the pod's service account is not mounted: {error}") from error


def from_kubeconfig(paths: Path | str, context: str | None = None) -> Access:
    """Return access data of a context, or of the current one, in a file or a list of files as in $KUBECONFIG.

    Raises:
        AccessError: the message names the file and the entry.
    """
    existing = [Path(path) for path in str(paths).split(os.pathsep) if path and Path(path).exists()]
    files = {path: _read(path) for path in existing}
    if not files:
        raise AccessError(f"there is no kubeconfig at {paths}")
    current = context or next((name for file in files.values() if (name := file.get("current-context"))), None)
    if current is None:
        raise AccessError(f"{paths} has no current-context: choose one with `kubectl config use-context`")
    try:
        chosen = _named(files, "contexts", current)
        cluster, user = (_named(files, f"{part}s", chosen.fields.get(part)) for part in ("cluster", "user"))
        return _access(chosen.fields.get("namespace") or "default", cluster, user)
    except (AttributeError, KeyError, TypeError) as error:
        raise AccessError(f"{paths} is not a usable kubeconfig: {error!r}") from error


def _access(namespace: str, cluster: "_ConfigEntry", user: "_ConfigEntry") -> Access:
    if "auth-provider" in user.fields:
        raise AccessError(f"{user.path}: Kubernetes has no auth-provider any more; use exec")
    if not isinstance(server := cluster.fields.get("server"), str):
        raise AccessError(f"{cluster.path}: the cluster has no server")
    proxy_url = cluster.fields.get("proxy-url") or _proxy_of_environment(server)
    if proxy_url and not proxy_url.startswith(("http://", "https://")):
        raise AccessError(f"{cluster.path}: proxy-url {proxy_url!r} is not supported; use a proxy for http or https")
    token_file = user.fields.get("tokenFile")
    return Access(
        server=server.rstrip("/"),
        namespace=namespace,
        ca=cluster.pem("certificate-authority"),
        insecure=bool(cluster.fields.get("insecure-skip-tls-verify")),
        server_name=cluster.fields.get("tls-server-name"),
        proxy_url=proxy_url,
        token=user.fields.get("token"),
        token_file=user.path.parent / token_file if token_file else None,
        certificate=user.pem("client-certificate"),
        key=user.pem("client-key"),
        plugin=exec_plugin(user.fields["exec"], cluster.fields, user.path) if user.fields.get("exec") else None,
    )


def _read(path: Path) -> dict[str, Any]:
    import yaml  # Pods have no kubeconfig.

    try:
        config = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise AccessError(f"{path} is not a usable kubeconfig: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise AccessError(f"{path} is not a usable kubeconfig: it holds no object")
    return config


@dataclass(frozen=True, slots=True)
class _ConfigEntry:
    """A context, cluster or user, and the file that has it: other files are named relative to it."""

    path: Path
    fields: dict[str, Any]

    def pem(self, field: str) -> bytes | None:
        """Return certificates or keys that are in the entry, or in a file that it names."""
        try:
            if data := self.fields.get(f"{field}-data"):
                return base64.b64decode(data, validate=True)
            if name := self.fields.get(field):
                return (self.path.parent / str(name)).read_bytes()
        except (OSError, ValueError) as error:
            raise AccessError(f"{self.path}: {field} cannot be read: {error}") from error
        return None


def _named(files: Mapping[Path, dict[str, Any]], section: str, name: object) -> _ConfigEntry:
    """Return the entry of the first file that has it."""
    for path, config in files.items():
        for entry in config.get(section) or ():
            if entry["name"] == name:
                return _ConfigEntry(path, entry.get(section.removesuffix("s")) or {})
    raise AccessError(f"{next(iter(files))}: there is no entry {name!r} in {section}")


def _proxy_of_environment(server: str) -> str | None:
    url = urlsplit(server)
    host = url.hostname or ""
    if host == "localhost" or _is_loopback(host) or proxy_bypass(host):
        return None
    return getproxies().get(url.scheme)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:  # A name, which may begin with a digit, too.
        return False
