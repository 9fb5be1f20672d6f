"""The addresses behind a Service. Pure."""

from collections.abc import Sequence

from longshore_devcluster.client.objects import uid_of
from longshore_devcluster.client.selectors import selector_matches
from longshore_devcluster.controllers.pods import FINAL_PHASES, is_ready
from longshore_kube.resources import Json

_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
SERVICE_LABEL = "kubernetes.io/service-name"


def endpoints_of(service: Json, pods: Sequence[Json]) -> Json:
    """Return the Endpoints object of a Service with a selector."""
    meta = service["metadata"]
    subsets = [_subset(service, ports, group) for ports, group in _by_ports(service, backends(service, pods))]
    return {
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": {**(meta.get("labels") or {}), "endpoints.kubernetes.io/managed-by": "endpoint-controller"},
        },
        "subsets": [subset for subset in subsets if len(subset) > 1 or "ports" not in subset],
    }


def slice_of(service: Json, pods: Sequence[Json]) -> Json:
    """Return the EndpointSlice of a Service with a selector."""
    meta = service["metadata"]
    members = backends(service, pods)
    grouped = _by_ports(service, members)
    return {
        "metadata": {
            "name": f"{meta['name']}-devcluster",
            "namespace": meta["namespace"],
            "labels": {SERVICE_LABEL: meta["name"], _MANAGED_BY: "endpointslice-controller.k8s.io"},
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "name": meta["name"],
                    "uid": uid_of(service),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "addressType": "IPv4",
        "endpoints": [_endpoint(service, pod) for pod in members],
        "ports": grouped[0][0] if grouped else [],
    }


def backends(service: Json, pods: Sequence[Json]) -> list[Json]:
    """Return the pods that a Service selects and that have an address."""
    selector = {"matchLabels": service["spec"]["selector"]}
    chosen = [
        pod
        for pod in pods
        if pod["metadata"]["namespace"] == service["metadata"]["namespace"]
        and (pod.get("status") or {}).get("podIP")
        and (pod.get("status") or {}).get("phase") not in FINAL_PHASES
        and selector_matches(selector, pod["metadata"].get("labels"))
    ]
    return sorted(chosen, key=lambda pod: str(pod["metadata"]["name"]))


def _by_ports(service: Json, pods: Sequence[Json]) -> list[tuple[list[Json], list[Json]]]:
    groups: list[tuple[list[Json], list[Json]]] = []
    for pod in pods:
        ports = [port for port in (_port(entry, pod) for entry in service["spec"].get("ports") or []) if port]
        for known, members in groups:
            if known == ports:
                members.append(pod)
                break
        else:
            groups.append((ports, [pod]))
    return groups


def _subset(service: Json, ports: list[Json], pods: list[Json]) -> Json:
    subset: Json = {}
    for name, wanted in (("addresses", True), ("notReadyAddresses", False)):
        addresses = [_address(pod) for pod in pods if _counts_as_ready(service, pod) is wanted]
        if addresses:
            subset[name] = addresses
    if ports:
        subset["ports"] = ports
    return subset


def _counts_as_ready(service: Json, pod: Json) -> bool:
    deleting = bool(pod["metadata"].get("deletionTimestamp"))
    return bool(service["spec"].get("publishNotReadyAddresses")) or (is_ready(pod) and not deleting)


def _address(pod: Json) -> Json:
    meta = pod["metadata"]
    address = {
        "ip": pod["status"]["podIP"],
        "nodeName": pod["spec"].get("nodeName", ""),
        "targetRef": {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": uid_of(pod)},
    }
    return address | ({"hostname": pod["spec"]["hostname"]} if pod["spec"].get("hostname") else {})


def _endpoint(service: Json, pod: Json) -> Json:
    address = _address(pod)
    deleting = bool(pod["metadata"].get("deletionTimestamp"))
    entry = {
        "addresses": [address["ip"]],
        "nodeName": address["nodeName"],
        "targetRef": address["targetRef"],
        "conditions": {
            "ready": _counts_as_ready(service, pod),
            "serving": is_ready(pod),
            "terminating": deleting,
        },
    }
    return entry | ({"hostname": address["hostname"]} if "hostname" in address else {})


def _port(port: Json, pod: Json) -> Json | None:
    target = port.get("targetPort", port["port"])
    protocol = port.get("protocol", "TCP")
    number = target if isinstance(target, int) else _named_port(str(target), protocol, pod)
    if number is None:
        return None
    entry = {"port": number, "protocol": protocol}
    return {"name": port["name"], **entry} if port.get("name") else entry


def _named_port(name: str, protocol: str, pod: Json) -> int | None:
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or []:
            if port.get("name") == name and port.get("protocol", "TCP") == protocol:
                return int(port["containerPort"])
    return None
