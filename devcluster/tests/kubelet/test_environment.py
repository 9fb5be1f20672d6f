"""The environment and command of a container, from its specification."""

import base64

import pytest
from devcluster.tests.builders import Json, pod

from longshore_devcluster.kubelet.environment import ConfigError, resolve_command, resolve_env


class Objects:
    """A ConfigMap `settings` and a Secret `keys`."""

    def config_map(self, namespace: str, name: str) -> Json | None:
        data = {"a": "1", "b": "2", "not a name": "3"}
        return {"data": data} if (namespace, name) == ("default", "settings") else None

    def secret(self, namespace: str, name: str) -> Json | None:
        return {"data": {"token": base64.b64encode(b"s3cret").decode()}} if name == "keys" else None

    def node_allocatable(self, node: str) -> Json:
        return {"cpu": "8", "memory": "1Gi"}


def env_of(container: Json, **pod_fields: object) -> dict[str, str]:
    return resolve_env(pod("trainer", **pod_fields), {"name": "main", **container}, Objects(), {"BASE": "base"})


def source(kind: str, **reference: object) -> Json:
    return {"env": [{"name": "X", "valueFrom": {kind: reference}}]}


def test_plain_values_expand_earlier_ones() -> None:
    env = [
        {"name": "HOST", "value": "$(BASE)"},
        {"name": "URL", "value": "http://$(HOST):$(PORT)/$$(HOST)"},
        {"name": "EMPTY"},
    ]

    assert env_of({"env": env}) == {"BASE": "base", "HOST": "base", "URL": "http://base:$(PORT)/$(HOST)", "EMPTY": ""}


def test_whole_config_maps_come_in_with_a_prefix_and_without_impossible_names() -> None:
    container = {"envFrom": [{"prefix": "P_", "configMapRef": {"name": "settings"}}]}

    assert env_of(container) == {"BASE": "base", "P_a": "1", "P_b": "2"}


def test_env_wins_over_env_from() -> None:
    container = {"envFrom": [{"configMapRef": {"name": "settings"}}], "env": [{"name": "a", "value": "mine"}]}

    assert env_of(container)["a"] == "mine"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "trainer"),
        ("metadata.namespace", "default"),
        ("metadata.uid", "uid-trainer"),
        ("metadata.labels['role']", "rollout"),
        ("metadata.annotations['absent']", ""),
        ("status.podIP", "127.1.1.1"),
        ("spec.nodeName", "dev-0"),
    ],
)
def test_fields_of_the_pod(path: str, value: str) -> None:
    env = env_of(
        source("fieldRef", fieldPath=path),
        labels={"role": "rollout"},
        nodeName="dev-0",
        status={"podIP": "127.1.1.1"},
    )

    assert env["X"] == value


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [("limits.cpu", None, "2"), ("limits.memory", "1Mi", "1024"), ("requests.cpu", "1m", "1500")],
)
def test_resources_of_the_container_are_rounded_up(resource: str, divisor: str | None, value: str) -> None:
    container = {
        "resources": {"limits": {"cpu": "1500m"}},
        **source("resourceFieldRef", resource=resource, **({"divisor": divisor} if divisor else {})),
    }

    assert env_of(container)["X"] == value


@pytest.mark.parametrize(
    ("container", "complaint"),
    [
        (source("configMapKeyRef", name="absent", key="k"), 'configmap "absent" not found'),
        (source("configMapKeyRef", name="settings", key="k"), "couldn't find key k in configmap default/settings"),
        ({"envFrom": [{"secretRef": {"name": "absent"}}]}, 'secret "absent" not found'),
    ],
)
def test_what_is_missing_is_named(container: Json, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        env_of(container)


def test_optional_references_may_be_missing() -> None:
    assert "X" not in env_of(source("secretKeyRef", name="absent", key="k", optional=True))
    assert env_of({"envFrom": [{"configMapRef": {"name": "absent", "optional": True}}]}) == {"BASE": "base"}


def test_command_and_arguments_expand_variables() -> None:
    container = {"name": "main", "command": ["run", "--host=$(BASE)"], "args": ["$(UNKNOWN)", "$$(BASE)"]}

    command = resolve_command(pod(), container, Objects(), {"BASE": "b"})

    assert command.argv == ["run", "--host=b", "$(UNKNOWN)", "$(BASE)"]
