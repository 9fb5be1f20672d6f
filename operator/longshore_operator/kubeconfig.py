"""How to reach the API server: KUBECONFIG first, then the service account of the pod."""

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ConfigError(Exception):
    """The access data cannot be used; the message names the file and the entry."""


@dataclass(frozen=True, slots=True)
class Access:
    """Address of an API server and the credentials for it."""

    server: str
    namespace: str = "default"
    ca: bytes | None = None
    """Certificate authority (PEM); None: the system's."""
    insecure: bool = False
    """Do not verify the server's certificate."""
    token: str | None = None
    token_file: Path | None = None
    """Read anew before each use: tokens of service accounts rotate."""
    certificate: bytes | None = None
    """Client certificate (PEM)."""
    key: bytes | None = None
    username: str | None = None
    password: str | None = None
    server_name: str | None = None
    """Name to verify in the server's certificate, where it is not the address."""

    def bearer_token(self) -> str | None:
        """The token to send now."""
        if self.token_file is not None:
            return self.token_file.read_text().strip()
        return self.token

    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS settings; None for plain HTTP."""
        if not self.server.startswith("https:"):
            return None
        context = ssl.create_default_context(cadata=self.ca.decode() if self.ca else None)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate is not None and self.key is not None:
            # The ssl module takes key pairs from files only.
            with tempfile.TemporaryDirectory() as folder:
                pair = Path(folder) / "client.pem"
                pair.touch(mode=0o600)
                pair.write_bytes(self.key + b"\n" + self.certificate)
                context.load_cert_chain(pair)
        return context


def load(environment: Mapping[str, str] = os.environ) -> Access:
    """Access data: the first file of $KUBECONFIG, else the pod's service account, else ~/.kube/config.

    Raises:
        ConfigError: nothing was found, or what was found cannot be used.
    """
    if environment.get("KUBECONFIG"):
        return from_kubeconfig(Path(environment["KUBECONFIG"].split(os.pathsep)[0]))
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environment)
    default = Path(environment.get("HOME", "/")) / ".kube" / "config"
    if default.exists():
        return from_kubeconfig(default)
    raise ConfigError("no cluster: set KUBECONFIG, or run in a pod with a service account token")


def in_cluster(environment: Mapping[str, str], folder: Path = _SERVICE_ACCOUNT) -> Access:
    """Access data of the pod that this process runs in."""
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        return Access(
            server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            namespace=(folder / "namespace").read_text().strip(),
            ca=(folder / "ca.crt").read_bytes(),
            token_file=folder / "token",
        )
    except OSError as error:
        raise ConfigError(f"the pod's service account is not mounted: {error}") from error


def from_kubeconfig(path: Path) -> Access:
    """Access data of a kubeconfig's current context."""
    try:
        config = yaml.safe_load(path.read_text())
        context = _named(config, "contexts", config.get("current-context"), path)["context"]
        cluster = _named(config, "clusters", context["cluster"], path)["cluster"]
        user = _named(config, "users", context["user"], path).get("user") or {}
        server = str(cluster["server"]).rstrip("/")
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a usable kubeconfig: {error!r}") from error
    if "exec" in user or "auth-provider" in user:
        raise ConfigError(f"{path}: credential plugins are not supported; use a token or a client certificate")
    token_file = user.get("tokenFile")
    return Access(
        server=server,
        namespace=context.get("namespace") or "default",
        ca=_pem(cluster, "certificate-authority", path),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        token=user.get("token"),
        token_file=path.parent / token_file if token_file else None,
        certificate=_pem(user, "client-certificate", path),
        key=_pem(user, "client-key", path),
        username=user.get("username"),
        password=user.get("password"),
        server_name=cluster.get("tls-server-name"),
    )


def _named(config: dict[str, Any], section: str, name: object, path: Path) -> dict[str, Any]:
    for entry in config.get(section) or ():
        if entry["name"] == name:
            return dict(entry)
    raise ConfigError(f"{path}: there is no entry {name!r} in {section}")


def _pem(entry: dict[str, Any], field: str, path: Path) -> bytes | None:
    if f"{field}-data" in entry:
        return base64.b64decode(entry[f"{field}-data"])
    if field in entry:
        try:
            return (path.parent / str(entry[field])).read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: {field} cannot be read: {error}") from error
    return None
