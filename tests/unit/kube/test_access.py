"""Where an API server is and who asks, as kubeconfig files and service accounts say it."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from longshore_kube.access import Access, from_kubeconfig, in_cluster, load
from longshore_kube.errors import AccessError


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
    assert access.token == "t"


def test_files_are_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_bytes(b"cert")
    (tmp_path / "key.pem").write_bytes(b"key")
    user = {"client-certificate": "cert.pem", "client-key": "key.pem"}
    access = from_kubeconfig(write(tmp_path / "config", user))
    assert (access.certificate, access.key) == (b"cert", b"key")


def test_a_token_file_is_relative_to_the_kubeconfig_too(tmp_path: Path) -> None:
    access = from_kubeconfig(write(tmp_path / "config", {"tokenFile": "token"}))
    assert access.token_file == tmp_path / "token"


def test_the_first_file_that_has_an_entry_counts(tmp_path: Path) -> None:
    """As in kubectl: a list of files is one configuration."""
    (tmp_path / "apart").mkdir()
    (tmp_path / "apart" / "ca.pem").write_bytes(b"PEM")
    first = {"clusters": [{"name": "k", "cluster": {"server": "https://10.0.0.9", "certificate-authority": "ca.pem"}}]}
    (tmp_path / "apart" / "first").write_text(yaml.safe_dump(first))
    second = write(tmp_path / "second", {"token": "t"})
    access = from_kubeconfig(f"{tmp_path}/apart/first:{second}:{tmp_path}/missing")
    assert (access.server, access.ca, access.token) == ("https://10.0.0.9", b"PEM", "t")


def test_another_context_than_the_current_one(tmp_path: Path) -> None:
    path = write(tmp_path / "config", {"token": "t"}, current="other")
    assert from_kubeconfig(path, "c").token == "t"


def test_kubeconfig_comes_before_the_pods_service_account(tmp_path: Path) -> None:
    path = write(tmp_path / "config", {"token": "t"})
    access = load({"KUBECONFIG": str(path), "KUBERNETES_SERVICE_HOST": "10.0.0.2"})
    assert access.server == "https://10.0.0.1:6443"


def test_the_pods_service_account(tmp_path: Path) -> None:
    for name, text in {"namespace": "team", "ca.crt": "PEM", "token": "t"}.items():
        (tmp_path / name).write_text(text)
    access = in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path)
    assert (access.server, access.namespace, access.token_file) == (
        "https://[fd00::1]:443",
        "team",
        tmp_path / "token",
    )


def test_nothing_found_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="set KUBECONFIG"):
        load({"HOME": str(tmp_path)})


def test_a_missing_context_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="no entry 'other' in contexts"):
        from_kubeconfig(write(tmp_path / "config", {}, current="other"))


def proxy(path: Path, **cluster: Any) -> str | None:
    return from_kubeconfig(write(path, {}, cluster)).proxy_url


def test_the_proxy_of_the_kubeconfig_goes_before_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://from.environment:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    path = tmp_path / "config"
    assert proxy(path, **{"proxy-url": "http://from.kubeconfig"}) == "http://from.kubeconfig"
    assert proxy(path, server="https://outside.example") == "http://from.environment:3128"
    assert proxy(path, server="https://inside.example") is None
    assert proxy(path, server="https://127.0.0.1:6443") is None, "as in kubectl"
    of_eks = "https://0123456789abcdef.gr7.us-east-1.eks.amazonaws.com"
    assert proxy(path, server=of_eks) == "http://from.environment:3128", "a name that begins with a digit"


def test_a_proxy_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="proxy-url 'socks5://here' is not supported"):
        proxy(tmp_path / "config", **{"proxy-url": "socks5://here"})


V1 = "client.authentication.k8s.io/v1"


def plugin(path: Path, **entry: Any) -> Access:
    cluster = {"extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}]}
    return from_kubeconfig(write(path, {"exec": {"apiVersion": V1, "command": "get-token"} | entry}, cluster))


def test_a_credential_plugin_is_a_program_on_the_path_or_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    environment = [{"name": "A", "value": "b"}]
    found = plugin(tmp_path / "config", args=["--cluster", "x"], env=environment).plugin
    assert found is not None
    assert found.command == ("get-token", "--cluster", "x")
    assert found.environment == (("A", "b"),)
    assert found.cluster == ""
    found = plugin(tmp_path / "config", command="./bin/get-token").plugin
    assert found is not None
    assert found.command == (str(tmp_path / "bin" / "get-token"),)


def test_a_credential_plugin_hears_of_the_cluster_if_it_asks(tmp_path: Path) -> None:
    found = plugin(tmp_path / "config", provideClusterInfo=True).plugin
    assert found is not None
    assert json.loads(found.cluster) == {"server": "https://10.0.0.1:6443/", "config": {"audience": "a"}}


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "v1alpha1' is not supported; use one of"),
     ({"command": ""}, "exec.command is missing")],
)  # fmt: skip
def test_a_credential_plugin_that_cannot_be_run_is_named(tmp_path: Path, entry: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AccessError, match=sentence):
        plugin(tmp_path / "config", **entry)


@pytest.mark.parametrize(
    ("user", "cluster", "sentence"),
    [({"auth-provider": {"name": "gcp"}}, {}, "use exec"),
     ({}, {"server": None}, "the cluster has no server"),
     ({"client-key": "none.pem"}, {}, "client-key cannot be read"),
     ({}, {"certificate-authority-data": "%"}, "certificate-authority cannot be read")],
)  # fmt: skip
def test_an_entry_that_is_of_no_use_is_named(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(AccessError, match=sentence):
        from_kubeconfig(write(tmp_path / "config", user, cluster))


def test_a_kubeconfig_without_a_current_context_says_how_to_choose_one(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="kubectl config use-context"):
        from_kubeconfig(write(tmp_path / "config", {}, current=""))


def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="there is no kubeconfig at"):
        from_kubeconfig(tmp_path / "none")


def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("[]")
    with pytest.raises(AccessError, match=str(path)):
        from_kubeconfig(path)
