"""Defaults of pods and pod templates."""

from longshore_devcluster.apiserver.schema.node import Object

_FILE_MODE = 420


def fill_template_spec(spec: Object) -> None:
    """Fill in the defaults of a pod specification, wherever it stands."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    elif spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    for container in spec.get("initContainers") or ():
        _fill_container(container, host_network=bool(spec.get("hostNetwork")))
    for container in spec.get("containers") or ():
        _fill_container(container, host_network=bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes") or ():
        _fill_volume(volume)
    for constraint in spec.get("topologySpreadConstraints") or ():
        constraint.setdefault("nodeAffinityPolicy", "Honor")
        constraint.setdefault("nodeTaintsPolicy", "Ignore")


def fill_pod(pod: Object) -> None:
    """Fill in the defaults of a new or changed pod; admission (service account, tolerations) comes elsewhere."""
    spec = pod.setdefault("spec", {})
    fill_template_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    status = pod.setdefault("status", {})
    status.setdefault("phase", "Pending")
    status.setdefault("qosClass", qos_class(spec))


def _fill_container(container: Object, *, host_network: bool) -> None:
    container.setdefault("resources", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("imagePullPolicy", _pull_policy(container.get("image", "")))
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network:
            port.setdefault("hostPort", port["containerPort"])
    for variable in container.get("env") or ():
        field_ref = (variable.get("valueFrom") or {}).get("fieldRef")
        if field_ref is not None:
            field_ref.setdefault("apiVersion", "v1")
        resource_ref = (variable.get("valueFrom") or {}).get("resourceFieldRef")
        if resource_ref is not None:
            resource_ref.setdefault("divisor", "0")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(name) is not None:
            _fill_probe(container[name])
    for hook in (container.get("lifecycle") or {}).values():
        if isinstance(hook, dict):
            _fill_handler(hook)
    resources = container["resources"]
    for name, amount in (resources.get("limits") or {}).items():
        resources.setdefault("requests", {}).setdefault(name, amount)


def _pull_policy(image: str) -> str:
    last = image.rsplit("/", 1)[-1]
    if "@" in last:
        return "IfNotPresent"
    _, _, tag = last.partition(":")
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _fill_probe(probe: Object) -> None:
    _fill_handler(probe)
    probe.setdefault("timeoutSeconds", 1)
    probe.setdefault("periodSeconds", 10)
    probe.setdefault("successThreshold", 1)
    probe.setdefault("failureThreshold", 3)


def _fill_handler(handler: Object) -> None:
    if handler.get("httpGet") is not None:
        handler["httpGet"].setdefault("path", "/")
        handler["httpGet"].setdefault("scheme", "HTTP")
    if handler.get("grpc") is not None:
        handler["grpc"].setdefault("service", "")


def _fill_volume(volume: Object) -> None:
    if set(volume) == {"name"}:
        volume["emptyDir"] = {}
    for name in ("secret", "configMap", "downwardAPI", "projected"):
        if volume.get(name) is not None:
            volume[name].setdefault("defaultMode", _FILE_MODE)
    if (host_path := volume.get("hostPath")) is not None:
        host_path.setdefault("type", "")
    items = list((volume.get("downwardAPI") or {}).get("items") or ())
    for source in (volume.get("projected") or {}).get("sources") or ():
        if (token := source.get("serviceAccountToken")) is not None:
            token.setdefault("expirationSeconds", 3600)
        items += (source.get("downwardAPI") or {}).get("items") or ()
    for item in items:
        if item.get("fieldRef") is not None:
            item["fieldRef"].setdefault("apiVersion", "v1")


def qos_class(spec: Object) -> str:
    """Return Guaranteed, Burstable or BestEffort, by the cpu and memory of all containers."""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    guaranteed, anything = True, False
    for container in containers:
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in ("cpu", "memory"):
            limit, request = limits.get(name), requests.get(name)
            anything = anything or bool(limit or request)
            guaranteed = guaranteed and bool(limit) and (request is None or request == limit)
    if not anything:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"
