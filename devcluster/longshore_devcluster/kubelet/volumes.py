"""Turns the volumes of a pod into directories, and keeps their content up to date."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from longshore_devcluster.client.kubeconfig import kubeconfig
from longshore_devcluster.kubelet.environment import ConfigError, Lookup, expand, source_data
from longshore_devcluster.kubelet.fields import field_value, resource_value
from longshore_devcluster.kubelet.files import File, publish, replace_file
from longshore_devcluster.kubelet.layout import PodLayout
from longshore_devcluster.kubelet.tokens import TokenRequest
from longshore_kube.access import Access
from longshore_kube.resources import Json

_DEFAULT_TOKEN_S = 3600


class VolumeLookup(Lookup, Protocol):
    """Finds claims and volumes too."""

    def claim_volume(self, namespace: str, claim: str) -> Json | None:
        """Return the persistent volume that a claim is bound to, or None."""


@dataclass(frozen=True)
class Inputs:
    """What the content of volumes is made of."""

    pod: Json
    lookup: VolumeLookup
    tokens: dict[TokenRequest, str]
    layout: PodLayout
    access: Access


def token_requests(pod: Json) -> list[TokenRequest]:
    """Return the service-account tokens that the pod's volumes want."""
    return [_token_request(source) for _, source in _token_sources(pod)]


def referenced_objects(pod: Json) -> set[tuple[str, str]]:
    """Return (kind, name) of the ConfigMaps, Secrets and claims whose changes matter to the pod."""
    found: set[tuple[str, str]] = set()

    def visit(value: object) -> None:
        if isinstance(value, list):
            for entry in value:
                visit(entry)
        elif isinstance(value, dict):
            for field, entry in value.items():
                kind = _REFERENCES.get(field)
                if kind and isinstance(entry, dict):
                    name = entry.get("name") or entry.get("secretName") or entry.get("claimName")
                    found.add((kind, str(name)))
                visit(entry)

    spec = pod["spec"]
    for part in (spec.get("volumes"), spec.get("initContainers"), spec.get("containers")):
        visit(part)
    return found


_REFERENCES = {
    "configMap": "configmap",
    "configMapRef": "configmap",
    "configMapKeyRef": "configmap",
    "secret": "secret",
    "secretRef": "secret",
    "secretKeyRef": "secret",
    "persistentVolumeClaim": "claim",
}


def prepare_volumes(inputs: Inputs) -> dict[str, Path]:
    """Create or refresh every volume of the pod; the real path of each, by volume name.

    Raises:
        ConfigError: something that a volume needs is missing or not supported here.
    """
    inputs.layout.create()
    volumes = inputs.pod["spec"].get("volumes") or []
    paths = {volume["name"]: _prepare(volume, inputs) for volume in volumes}
    for volume, source in _token_sources(inputs.pod):
        if not source.get("audience"):
            token_file = paths[volume["name"]] / source["path"]
            user, namespace = {"tokenFile": str(token_file)}, inputs.pod["metadata"]["namespace"]
            text = kubeconfig(inputs.access.server, inputs.access.ca or b"", user, namespace)
            replace_file(inputs.layout.kubeconfig(volume["name"]), text, 0o600)
    return paths


def mount_table(container: Json, volumes: dict[str, Path], layout: PodLayout, env: dict[str, str]) -> dict[str, str]:
    """Return the real path behind each mount path of a container, that of its termination message included.

    Raises:
        ConfigError: a mount names a volume that the pod does not have.
    """
    message_path = container.get("terminationMessagePath") or "/dev/termination-log"
    table = {message_path: str(layout.termination_message(container["name"]))}
    for mount in container.get("volumeMounts") or []:
        if mount["name"] not in volumes:
            raise ConfigError(f'volumeMounts names the volume "{mount["name"]}", which is not among spec.volumes')
        path = volumes[mount["name"]]
        below = mount.get("subPath") or expand(mount.get("subPathExpr") or "", env)
        if below:
            path = path / below
            if not path.exists():
                path.mkdir(parents=True)
        table[mount["mountPath"]] = str(path)
    return table


def kubeconfig_of(container: Json, pod: Json, layout: PodLayout) -> Path | None:
    """Return the kubeconfig for the service-account token that a container mounts, if it mounts one."""
    mounted = {mount["name"] for mount in container.get("volumeMounts") or []}
    for volume, source in _token_sources(pod):
        if volume["name"] in mounted and not source.get("audience"):
            return layout.kubeconfig(volume["name"])
    return None


def _prepare(volume: Json, inputs: Inputs) -> Path:
    path = inputs.layout.volume(volume["name"])
    if "emptyDir" in volume:
        if (volume["emptyDir"] or {}).get("medium") == "Memory":
            path = inputs.layout.memory_volume(volume["name"])
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
        return path
    if "hostPath" in volume:
        return _host_path(volume["hostPath"])
    if "persistentVolumeClaim" in volume:
        return _claim_path(volume["persistentVolumeClaim"]["claimName"], inputs)
    publish(path, _volume_files(volume, inputs))
    return path


def _volume_files(volume: Json, inputs: Inputs) -> dict[str, File]:
    for kind in ("configMap", "secret", "downwardAPI"):
        if kind in volume:
            mode = volume[kind].get("defaultMode", 0o644)
            return _source_files({kind: volume[kind]}, mode, inputs)
    if "projected" in volume:
        files: dict[str, File] = {}
        for source in volume["projected"].get("sources") or []:
            files |= _source_files(source, volume["projected"].get("defaultMode", 0o644), inputs)
        return files
    kinds = ", ".join(sorted(set(volume) - {"name"}))
    raise ConfigError(
        f'volume "{volume["name"]}" is of a kind that the embedded cluster does not have ({kinds}): use emptyDir, '
        "configMap, secret, projected, downwardAPI, hostPath or persistentVolumeClaim"
    )


def _source_files(source: Json, mode: int, inputs: Inputs) -> dict[str, File]:
    namespace = inputs.pod["metadata"]["namespace"]
    if "serviceAccountToken" in source:
        token = inputs.tokens[_token_request(source["serviceAccountToken"])]
        return {source["serviceAccountToken"]["path"]: File(token.encode(), mode)}
    if "downwardAPI" in source:
        return {
            item["path"]: File(_downward(item, inputs).encode(), item.get("mode", mode))
            for item in source["downwardAPI"].get("items") or []
        }
    kind = "configmap" if "configMap" in source else "secret"
    reference = source.get("configMap") or source.get("secret") or {}
    entries = source_data(kind, namespace, reference, inputs.lookup)
    if not reference.get("items"):
        return {name: File(data, mode) for name, data in entries.items()}
    files = {}
    for item in reference["items"]:
        if item["key"] in entries:
            files[item["path"]] = File(entries[item["key"]], item.get("mode", mode))
        elif not reference.get("optional"):
            name = reference.get("name") or reference.get("secretName")
            raise ConfigError(f'{kind} "{name}" has no key {item["key"]!r}')
    return files


def _downward(item: Json, inputs: Inputs) -> str:
    if "fieldRef" in item:
        return field_value(inputs.pod, item["fieldRef"]["fieldPath"])
    reference, spec = item["resourceFieldRef"], inputs.pod["spec"]
    for container in spec["containers"]:
        if container["name"] == reference.get("containerName"):
            return resource_value(container, reference, inputs.lookup.node_allocatable(spec["nodeName"]))
    raise ConfigError(f"resourceFieldRef names the container {reference.get('containerName')!r}, which does not exist")


def _host_path(source: Json) -> Path:
    path, kind = Path(source["path"]), source.get("type") or ""
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch()
    wrong = (
        (kind == "Directory" and not path.is_dir())
        or (kind == "File" and not path.is_file())
        or (kind == "Socket" and not path.is_socket())
    )
    if wrong:
        raise ConfigError(f"hostPath type check failed: {path} is not a {kind.lower()}")
    return path


def _claim_path(claim: str, inputs: Inputs) -> Path:
    volume = inputs.lookup.claim_volume(inputs.pod["metadata"]["namespace"], claim)
    if volume is None:
        raise ConfigError(f'persistentvolumeclaim "{claim}" is not bound')
    source = volume["spec"].get("hostPath") or volume["spec"].get("local")
    if source is None:
        raise ConfigError(
            f'persistentvolume "{volume["metadata"]["name"]}" is neither hostPath nor local: '
            "the embedded cluster has directories only"
        )
    return _host_path({"path": source["path"], "type": "DirectoryOrCreate"})


def _token_sources(pod: Json) -> list[tuple[Json, Json]]:
    return [
        (volume, source["serviceAccountToken"])
        for volume in pod["spec"].get("volumes") or []
        for source in (volume.get("projected") or {}).get("sources") or []
        if "serviceAccountToken" in source
    ]


def _token_request(source: Json) -> TokenRequest:
    return TokenRequest(source.get("audience") or "", source.get("expirationSeconds") or _DEFAULT_TOKEN_S)
