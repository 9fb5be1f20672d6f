"""How the operator finds its cluster."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from longshore_operator.kubeconfig import ConfigError, from_kubeconfig, in_cluster, load


def write(path: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None, current: str = "c") -> Path:
    config = {
        "current-context": current,
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://10.0.0.1:6443/"} | (cluster or {})}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_token_and_an_embedded_authority(tmp_path: Path) -> None:
    authority = base64.b64encode(b"PEM").decode()
    access = from_kubeconfig(write(tmp_path / "config", {"token": "t"}, {"certificate-authority-data": authority}))
    assert (access.server, access.namespace, access.ca) == ("https://10.0.0.1:6443", "team", b"PEM")
    assert access.bearer_token() == "t"


def test_files_are_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_bytes(b"cert")
    (tmp_path / "key.pem").write_bytes(b"key")
    user = {"client-certificate": "cert.pem", "client-key": "key.pem"}
    access = from_kubeconfig(write(tmp_path / "config", user))
    assert (access.certificate, access.key) == (b"cert", b"key")


def test_a_rotated_token_is_read_anew(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    access = from_kubeconfig(write(tmp_path / "config", {"tokenFile": "token"}))
    assert access.bearer_token() == "first"
    (tmp_path / "token").write_text("second\n")
    assert access.bearer_token() == "second"


def test_kubeconfig_comes_before_the_pods_service_account(tmp_path: Path) -> None:
    path = write(tmp_path / "config", {"token": "t"})
    access = load({"KUBECONFIG": str(path), "KUBERNETES_SERVICE_HOST": "10.0.0.2"})
    assert access.server == "https://10.0.0.1:6443"


def test_the_pods_service_account(tmp_path: Path) -> None:
    for name, text in {"namespace": "team", "ca.crt": "PEM", "token": "t"}.items():
        (tmp_path / name).write_text(text)
    access = in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path)
    assert (access.server, access.namespace, access.bearer_token()) == ("https://[fd00::1]:443", "team", "t")


def test_nothing_found_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set KUBECONFIG"):
        load({"HOME": str(tmp_path)})


def test_a_missing_context_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no entry 'other' in contexts"):
        from_kubeconfig(write(tmp_path / "config", {}, current="other"))


def test_a_credential_plugin_is_refused_with_the_alternative(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use a token or a client certificate"):
        from_kubeconfig(write(tmp_path / "config", {"exec": {"command": "aws"}}))


def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("[]")
    with pytest.raises(ConfigError, match=str(path)):
        from_kubeconfig(path)
