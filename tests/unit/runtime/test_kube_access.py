"""The coordinator finds the API server without a word about it."""

from pathlib import Path

import pytest
from kubernetes import client
from kubernetes.config import incluster_config

from longshore_runtime.kube_access import load_credentials

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "https://from.kubeconfig:6443"}}]
users: [{name: me, user: {token: secret}}]
"""


@pytest.fixture(autouse=True)
def fresh_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.Configuration, "_default", None)


def test_a_pod_uses_its_service_account_and_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "ca.crt").write_text("certificate")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    load_credentials({})
    assert client.Configuration.get_default_copy().host == "https://10.0.0.1:443"
    assert capfd.readouterr() == ("", "")


def test_a_kubeconfig_that_is_named_comes_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config").write_text(KUBECONFIG)
    load_credentials({"KUBECONFIG": str(tmp_path / "config")})
    assert client.Configuration.get_default_copy().host == "https://from.kubeconfig:6443"
    assert capfd.readouterr() == ("", "")
