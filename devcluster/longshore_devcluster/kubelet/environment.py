"""What a container runs and with which environment, resolved from its specification; pure but for look-ups."""

import base64
import re
from dataclasses import dataclass
from typing import Protocol

from longshore_devcluster.kubelet.fields import field_value, resource_value
from longshore_kube.resources import Json

_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
_VARIABLE_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


class ConfigError(Exception):
    """The container cannot be created yet: something that it refers to is missing."""


class Lookup(Protocol):
    """Finds the objects that a pod refers to."""

    def config_map(self, namespace: str, name: str) -> Json | None:
        """Return a ConfigMap, or None."""

    def secret(self, namespace: str, name: str) -> Json | None:
        """Return a Secret, or None."""

    def node_allocatable(self, node: str) -> Json:
        """Return `status.allocatable` of a node."""


@dataclass(frozen=True)
class Command:
    """Program with arguments, and the environment from the specification."""

    argv: list[str]
    env: dict[str, str]


def resolve_command(pod: Json, container: Json, lookup: Lookup, base_env: dict[str, str]) -> Command:
    """Return the command and environment of a container; `base_env` is what every container of the pod has.

    Raises:
        ConfigError: its configuration cannot be resolved.
    """
    env = resolve_env(pod, container, lookup, base_env)
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    return Command([expand(word, env) for word in words], env)


def resolve_env(pod: Json, container: Json, lookup: Lookup, base_env: dict[str, str]) -> dict[str, str]:
    """Return the environment: the base, then `envFrom`, then `env`, later entries seeing the earlier.

    Raises:
        ConfigError: its configuration cannot be resolved.
    """
    env = dict(base_env)
    namespace = pod["metadata"]["namespace"]
    for source in container.get("envFrom") or []:
        prefix = source.get("prefix") or ""
        for name, value in _whole_source(source, namespace, lookup).items():
            if _VARIABLE_NAME.fullmatch(prefix + name):
                env[prefix + name] = value
    for entry in container.get("env") or []:
        if "valueFrom" not in entry:
            env[entry["name"]] = expand(entry.get("value") or "", env)
            continue
        value_or_none = _value_from(entry["valueFrom"], pod, container, lookup)
        if value_or_none is not None:
            env[entry["name"]] = value_or_none
    return env


def expand(text: str, env: dict[str, str]) -> str:
    """Replace `$(NAME)` by the variable's value; `$$` stands for `$`, and an unknown name stays as written."""

    def replacement(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return env.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def config_map_data(config_map: Json) -> dict[str, bytes]:
    """Return all entries of a ConfigMap."""
    text = {name: value.encode() for name, value in (config_map.get("data") or {}).items()}
    binary = {name: base64.b64decode(value) for name, value in (config_map.get("binaryData") or {}).items()}
    return text | binary


def secret_data(secret: Json) -> dict[str, bytes]:
    """Return all entries of a Secret."""
    return {name: base64.b64decode(value) for name, value in (secret.get("data") or {}).items()}


def source_data(kind: str, namespace: str, reference: Json, lookup: Lookup) -> dict[str, bytes]:
    """Return all entries of the ConfigMap or Secret (`kind`) of a reference; none when it is absent and optional.

    Raises:
        ConfigError: it is absent and not optional.
    """
    name = reference.get("name") or reference.get("secretName") or ""
    find, read = (lookup.config_map, config_map_data) if kind == "configmap" else (lookup.secret, secret_data)
    obj = find(namespace, name)
    if obj is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f'{kind} "{name}" not found')
    return read(obj)


def _whole_source(source: Json, namespace: str, lookup: Lookup) -> dict[str, str]:
    kind, field = ("configmap", "configMapRef") if "configMapRef" in source else ("secret", "secretRef")
    entries = source_data(kind, namespace, source[field], lookup)
    return {name: value.decode(errors="replace") for name, value in sorted(entries.items())}


def _value_from(source: Json, pod: Json, container: Json, lookup: Lookup) -> str | None:
    namespace = pod["metadata"]["namespace"]
    if "fieldRef" in source:
        return field_value(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        allocatable = lookup.node_allocatable(pod["spec"].get("nodeName", ""))
        return resource_value(container, source["resourceFieldRef"], allocatable)
    for kind, field in (("configmap", "configMapKeyRef"), ("secret", "secretKeyRef")):
        if field in source:
            return _key(kind, namespace, source[field], lookup)
    raise ConfigError(f"env valueFrom has no known source: {', '.join(sorted(source)) or 'it is empty'}")


def _key(kind: str, namespace: str, reference: Json, lookup: Lookup) -> str | None:
    entries = source_data(kind, namespace, reference, lookup)
    if reference["key"] in entries:
        return entries[reference["key"]].decode(errors="replace")
    if reference.get("optional"):
        return None
    name = reference.get("name", "")
    raise ConfigError(f"couldn't find key {reference['key']} in {kind} {namespace}/{name}")
