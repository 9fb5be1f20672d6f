"""Where an API server is and how to identify oneself to it."""

import base64
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class ClusterAccess:
    """The server URL, its certificate authority (PEM) and one identity: a token or a client certificate."""

    server: str
    ca_pem: str
    token: str | None = None
    client_cert_pem: str | None = None
    client_key_pem: str | None = None

    @classmethod
    def from_kubeconfig(cls, path: Path) -> "ClusterAccess":
        """The access of the current context of a kubeconfig.

        Errors: ValueError when the file lacks the current context's cluster or user.
        """
        config = yaml.safe_load(path.read_text())
        context = _named(config, "contexts", config.get("current-context"), path)["context"]
        cluster = _named(config, "clusters", context["cluster"], path)["cluster"]
        user = _named(config, "users", context["user"], path)["user"]
        token = user.get("token")
        if token is None and user.get("tokenFile"):
            token = Path(user["tokenFile"]).read_text().strip()
        return cls(
            server=cluster["server"].rstrip("/"),
            ca_pem=_pem(cluster, "certificate-authority"),
            token=token,
            client_cert_pem=_pem(user, "client-certificate") or None,
            client_key_pem=_pem(user, "client-key") or None,
        )

    def with_token(self, token: str) -> "ClusterAccess":
        """The same server under another identity."""
        return ClusterAccess(self.server, self.ca_pem, token)

    def ssl_context(self) -> ssl.SSLContext:
        """A TLS context that trusts only this cluster's authority."""
        context = ssl.create_default_context(cadata=self.ca_pem or None)
        if self.client_cert_pem and self.client_key_pem:
            # The ssl module loads key pairs from files only.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as pair:
                pair.write(self.client_cert_pem + "\n" + self.client_key_pem)
                pair.flush()
                context.load_cert_chain(pair.name)
        return context


def _named(config: dict[str, Any], section: str, name: str | None, path: Path) -> dict[str, Any]:
    for entry in config.get(section) or []:
        if entry["name"] == name:
            return dict(entry)
    raise ValueError(f"{path}: {section} has no entry named {name!r}; set current-context to an existing one")


def _pem(entry: dict[str, Any], field: str) -> str:
    if f"{field}-data" in entry:
        return base64.b64decode(entry[f"{field}-data"]).decode()
    return Path(entry[field]).read_text() if entry.get(field) else ""
