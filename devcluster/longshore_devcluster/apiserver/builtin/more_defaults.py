"""Defaults of the other built-in resources."""

import base64

from longshore_devcluster.apiserver.schema.node import Object


def namespace(obj: Object) -> None:
    labels = obj["metadata"].setdefault("labels", {})
    if obj["metadata"].get("name"):
        labels["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
    spec = obj.setdefault("spec", {})
    if "deletionTimestamp" not in obj["metadata"]:
        spec.setdefault("finalizers", ["kubernetes"])
    obj.setdefault("status", {}).setdefault("phase", "Active")


def node(obj: Object) -> None:
    obj.setdefault("spec", {})
    obj.setdefault("status", {})


def secret(obj: Object) -> None:
    obj.setdefault("type", "Opaque")
    plain = obj.pop("stringData", None)
    if plain:
        data = obj["data"] = dict(obj.get("data") or {})
        for name, value in plain.items():
            data[name] = base64.b64encode(value.encode()).decode()


def service(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port["port"])
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        if spec.get("clusterIP"):
            spec.setdefault("clusterIPs", [spec["clusterIP"]])
    obj.setdefault("status", {}).setdefault("loadBalancer", {})


def volume_claim(obj: Object) -> None:
    obj.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
    obj.setdefault("status", {}).setdefault("phase", "Pending")


def volume(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("volumeMode", "Filesystem")
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    if (host_path := spec.get("hostPath")) is not None:
        host_path.setdefault("type", "")
    obj.setdefault("status", {}).setdefault("phase", "Pending")


def role_binding(obj: Object) -> None:
    role = obj.get("roleRef")
    if isinstance(role, dict):
        role.setdefault("apiGroup", "rbac.authorization.k8s.io")
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", "rbac.authorization.k8s.io")


def network_policy(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    spec.setdefault("policyTypes", ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])
    for direction in ("ingress", "egress"):
        for rule in spec.get(direction) or ():
            for port in rule.get("ports") or ():
                port.setdefault("protocol", "TCP")


def disruption_budget(obj: Object) -> None:
    counts = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
    obj.setdefault("status", dict.fromkeys(counts, 0))


def storage_class(obj: Object) -> None:
    obj.setdefault("reclaimPolicy", "Delete")
    obj.setdefault("volumeBindingMode", "Immediate")


def priority_class(obj: Object) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def admission_policy(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("failurePolicy", "Fail")
    _match_resources(spec.setdefault("matchConstraints", {}))


def admission_policy_binding(obj: Object) -> None:
    if (matched := obj.setdefault("spec", {}).get("matchResources")) is not None:
        _match_resources(matched)


def _match_resources(matched: Object) -> None:
    matched.setdefault("matchPolicy", "Equivalent")
    matched.setdefault("namespaceSelector", {})
    matched.setdefault("objectSelector", {})
    for group in ("resourceRules", "excludeResourceRules"):
        for rule in matched.get(group) or ():
            rule.setdefault("scope", "*")


def custom_resource_definition(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    names = spec.get("names") or {}
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")
    spec.setdefault("conversion", {}).setdefault("strategy", "None")
    for version in spec.get("versions") or ():
        for column in version.get("additionalPrinterColumns") or ():
            if column.get("priority") == 0:
                del column["priority"]
    obj.setdefault("status", {})
