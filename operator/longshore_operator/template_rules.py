"""Rules about what a pod template must not ask for.

Anyone who may create an RLJob shall not gain more than their pods have by default; so everything is refused that would
reach the node, other identities, or the pods' bookkeeping (Pod Security Standards, level Restricted, and more).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from longshore.api import contract
from longshore.api.names import GROUP
from longshore.api.pods import PodOptions
from longshore.api.spec import RLJobSpec
from longshore_operator.template import MISSING, Json, merge, misshapen

MAX_GRACE_S: Final = 600
"""Longest time that a pod may take to end: until then it keeps its node, its GPUs, and suspension waiting."""

MESH_LABELS: Final = {"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"}
MESH_ANNOTATIONS: Final = {"linkerd.io/inject": "disabled"}
"""Labels and annotations that keep a pod out of service meshes, unless its template says otherwise.

With the NetworkPolicies of the job, the proxy of a mesh does not reach its control plane; and a pod that runs once does
not end while its proxy runs.
"""

_POD_FIELDS: Final = (
    "serviceAccountName", "serviceAccount", "automountServiceAccountToken", "hostNetwork", "hostPID", "hostIPC",
    "restartPolicy", "hostname", "hostnameOverride", "subdomain", "nodeName", "ephemeralContainers",
    "activeDeadlineSeconds", "priority", "preemptionPolicy", "overhead",
)  # fmt: skip
_POD_SECURITY: Final = ("sysctls", "windowsOptions", "seLinuxOptions", "appArmorProfile", "seccompProfile")
_CONTAINER_SECURITY: Final = (
    "privileged", "allowPrivilegeEscalation", "capabilities", "procMount", "seccompProfile", "seLinuxOptions",
    "appArmorProfile", "windowsOptions",
)  # fmt: skip
_VOLUMES: Final = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
_PROJECTED: Final = frozenset({"clusterTrustBundle", "configMap", "downwardAPI", "secret"})
"""The others (serviceAccountToken, podCertificate) prove who a pod is."""
_IDENTITY: Final = (
    "aadpodidbinding", "azure.workload.identity", "eks.amazonaws.com", "iam.amazonaws.com", "iam.cloud.google.com",
    "iam.gke.io",
)  # fmt: skip
"""Domains of labels and annotations by which clouds give pods an identity."""
_NODE: Final = (
    "cdi.k8s.io", "cri-o.io", "crio.io", "dev.gvisor", "io.containerd", "io.katacontainers", "io.kubernetes",
    "nri.containerd.io", "nri.io",
)  # fmt: skip
"""Domains of annotations that configure container runtimes: profiles, devices, hypervisors."""
_RESERVED: Final = ("kubernetes.io", "k8s.io")
"""Domains of Kubernetes itself, in which only the names below are for users."""
_FOR_USERS: Final = (
    "cluster-autoscaler.kubernetes.io", "controller.kubernetes.io", "descheduler.alpha.kubernetes.io",
    "kubectl.kubernetes.io", "scheduling.k8s.io", "scheduling.sigs.k8s.io",
)  # fmt: skip
_BANDWIDTH: Final = frozenset({"kubernetes.io/egress-bandwidth", "kubernetes.io/ingress-bandwidth"})
_INJECTORS: Final = (
    "admission.datadoghq.com", "appmesh.k8s.aws", "banzaicloud.io", "dapr.io", "dynatrace.com", "flagger.app",
    "hashicorp.com", "istio.io", "jaegertracing.io", "kuma.io", "linkerd.io", "openservicemesh.io", "opentelemetry.io",
)  # fmt: skip
"""Domains of webhooks that add containers, images and volumes to a pod as its labels and annotations say."""
_INJECTS: Final = "inject"
"""Texts in most names by which other such webhooks are asked."""
_KUEUE: Final = "kueue.x-k8s.io/"
_SIDECAR: Final = "Always"
"""Restart policy of an init container that runs beside the others."""
_CHECKS: Final = ("readinessProbe", "livenessProbe", "startupProbe")
_HOOKS: Final = ("postStart", "preStop")


@dataclass(frozen=True, slots=True)
class Allowed:
    """Exceptions that the operator was installed to allow."""

    everything: bool = False
    """Whether only the shape of a template is checked."""
    priority_classes: frozenset[str] = frozenset()
    runtime_classes: frozenset[str] = frozenset()


def pod_options(spec: RLJobSpec) -> dict[str, PodOptions]:
    """Return the options of every component that a job describes, by the field of the spec."""
    options: dict[str, PodOptions] = {"workers": spec.workers, "coordinator": spec.coordinator, "reward": spec.reward}
    if spec.trainer_workers is not None:
        options["trainerWorkers"] = spec.trainer_workers
    pools = {one.name: one.pool for one in spec.reward.functions if one.pool is not None}
    options |= {f"reward.functions[{name}].judge.pool": pool for name, pool in pools.items()}
    return options | {f"environments[{one.name}].pods": one.pods for one in spec.environments}


def refusal(spec: RLJobSpec, allowed: Allowed) -> str | None:
    """Return a sentence about the first forbidden field in a template of the job; None if there is none."""
    with_server = {f"environments[{one.name}].pods" for one in spec.environments if one.server is not None}
    for field, options in pod_options(spec).items():
        found = refusals(options.template, allowed, has_server=field in with_server)
        if found:
            return f"spec.{field}.template.{found[0]}; {'set' if MISSING in found[0] else 'remove'} it"
    hosts = {f"environments[{one.name}].pods": one.pods.runtime_class_name for one in spec.environments}
    for field, runtime_class in {"reward": spec.reward.runtime_class_name, **hosts}.items():
        if (refused := refused_runtime_class(runtime_class, allowed)) is not None:
            return f"spec.{field}.runtimeClassName: {refused}; choose another, or remove it"
    return None


def refusals(template: Json, allowed: Allowed = Allowed(), *, has_server: bool = False) -> list[str]:
    """Return fields of a template that pods cannot or must not have, as dotted paths with the reason.

    `has_server`: the pods have the server of an environment.
    """
    wrong = misshapen(template) or list(_incomplete(template, has_server=has_server))
    if wrong or allowed.everything:
        return wrong
    return [*_metadata(template), *_spec(template.get("spec", {}), allowed)]


def _incomplete(template: Json, *, has_server: bool) -> Iterator[str]:
    """Yield what containers would lack once the template is merged: no pod could be made, or none could start."""
    own = [{"name": contract.CONTAINER, "image": "own"}]
    servers = [{"name": contract.SERVER_CONTAINER, "image": "own", "restartPolicy": _SIDECAR}] if has_server else []
    spec = merge({"spec": {"containers": own, "initContainers": servers}}, template)["spec"]
    if has_server and "initContainers" not in spec:
        yield "spec.initContainers: cannot be removed"
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind, ()):
            path = f"spec.{kind}[{container['name']}]"
            if not container.get("image"):
                yield f"{path}.image: {MISSING}, and the pod has no image for this container"
            if (
                has_server
                and container["name"] == contract.SERVER_CONTAINER
                and container.get("restartPolicy") != _SIDECAR
            ):
                yield f"{path}.restartPolicy: cannot be removed"


def refused_runtime_class(name: str | None, allowed: Allowed) -> str | None:
    """Return why a RuntimeClass must not be used, or None: it can isolate less than the default."""
    if name is None or allowed.everything or name in allowed.runtime_classes:
        return None
    return f"{name!r} is not among the operator's allowed RuntimeClasses (chart value templates.runtimeClasses)"


def _metadata(template: Json) -> Iterator[str]:
    for field in template:
        if field not in ("metadata", "spec"):
            yield f"{field}: a template has metadata and spec only"
    for field, entries in template.get("metadata", {}).items():
        if field not in ("labels", "annotations"):
            yield f"metadata.{field}: only labels and annotations can be set"
            continue
        for name in entries:
            reason = _refused_key(name)
            if reason is not None:
                yield f"metadata.{field}[{name}]: {reason}"


def _refused_key(name: str) -> str | None:
    """Return why a template must not have a label or an annotation of this name; None: it may."""
    domain, _, own_name = name.rpartition("/")
    if (domain or own_name).endswith(GROUP) or domain == "app.kubernetes.io":
        return "is set by the operator"
    if _is_in(domain or own_name, _IDENTITY):
        return "gives the pod another identity"
    is_for_users = name in _BANDWIDTH or _is_in(domain, _FOR_USERS)
    if _is_in(domain, _NODE) or (_is_in(domain, _RESERVED) and not is_for_users):
        return "tells the node how to run the pod"
    if not domain and "." in own_name:
        return "tells the node how to run the pod: container runtimes read names with a dot and without a slash"
    if name in MESH_LABELS | MESH_ANNOTATIONS:
        return None
    if _is_in(domain, _INJECTORS) or _INJECTS in name.lower():
        return "has a webhook add containers or volumes to the pod; add them in the template itself"
    return None


def _is_in(domain: str, domains: tuple[str, ...]) -> bool:
    domain = domain.lower()
    return any(domain == one or domain.startswith(f"{one}.") or domain.endswith(f".{one}") for one in domains)


def _spec(spec: Json, allowed: Allowed) -> Iterator[str]:
    for field in _POD_FIELDS:
        if field in spec:
            yield f"spec.{field}: is not for a template"
    for gate in spec.get("schedulingGates") or ():
        if gate["name"].startswith(_KUEUE):
            yield f"spec.schedulingGates[{gate['name']}]: is set by Kueue"
    if spec.get("hostUsers", False) is not False:
        yield "spec.hostUsers: can only be false"
    if spec.get("shareProcessNamespace", False) is not False:
        yield "spec.shareProcessNamespace: containers must not see each other's processes"
    yield from _classes(spec, allowed)
    yield from _grace("spec", spec)
    yield from _apart((spec.get("affinity") or {}).get("podAntiAffinity") or {})
    security = spec.get("securityContext", {})
    yield from _security("spec.securityContext", security, _POD_SECURITY)
    for volume in spec.get("volumes", ()):
        yield from _volume(volume)
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            path = f"spec.{kind}[{container['name']}]"
            yield from _restarts(path, container, is_init=kind == "initContainers")
            yield from _container(path, container)


def _restarts(path: str, container: Json, *, is_init: bool) -> Iterator[str]:
    """Refuse restarts in place: the operator decides what follows when a container has ended."""
    for field in ("restartPolicy", "restartPolicyRules"):
        if container.get(field) is not None and not (is_init and container[field] == _SIDECAR):
            allowed = f"; only init containers may have it, as {_SIDECAR}" if field == "restartPolicy" else ""
            yield f"{path}.{field}: restarts a container that the operator replaces with its pod{allowed}"


def _classes(spec: Json, allowed: Allowed) -> Iterator[str]:
    priority = spec.get("priorityClassName")
    if priority is not None and priority not in allowed.priority_classes:
        yield (
            f"spec.priorityClassName: {priority!r} is not among the operator's allowed PriorityClasses "
            "(chart value templates.priorityClasses)"
        )
    refused = refused_runtime_class(spec.get("runtimeClassName"), allowed)
    if refused is not None:
        yield f"spec.runtimeClassName: {refused}"


def _apart(anti_affinity: Json) -> Iterator[str]:
    """Yield mistakes of a required anti-affinity, which keeps pods of others off the node, too."""
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    for term in anti_affinity.get(field) or ():
        for scope in ("namespaces", "namespaceSelector"):
            if scope in term:
                yield f"spec.affinity.podAntiAffinity.{field}.{scope}: keeps pods of other namespaces from nodes"


def _grace(path: str, fields: Mapping[str, Any]) -> Iterator[str]:
    if (fields.get("terminationGracePeriodSeconds") or 0) > MAX_GRACE_S:
        yield f"{path}.terminationGracePeriodSeconds: is more than {MAX_GRACE_S} s"


def _volume(volume: Json) -> Iterator[str]:
    path = f"spec.volumes[{volume['name']}]"
    for source in volume:
        if source != "name" and source not in _VOLUMES:
            yield f"{path}.{source}: reaches outside the pod"
    for entry in (volume.get("projected") or {}).get("sources") or ():
        for source in entry:
            if source not in _PROJECTED:
                yield f"{path}.projected.{source}: is another identity"


def _container(path: str, container: Json) -> Iterator[str]:
    yield from _security(f"{path}.securityContext", container.get("securityContext", {}), _CONTAINER_SECURITY)
    for port in container.get("ports") or ():
        for field in ("hostPort", "hostIP"):
            if field in port:
                yield f"{path}.ports[{port['containerPort']}].{field}: opens the node"
    for check in _CHECKS:
        yield from _check(f"{path}.{check}", container.get(check) or {})
    hooks = container.get("lifecycle") or {}
    for hook in _HOOKS:
        yield from _check(f"{path}.lifecycle.{hook}", hooks.get(hook) or {})


def _check(path: str, check: Json) -> Iterator[str]:
    """Refuse other hosts: the kubelet sends these requests from the node, past the pod's restrictions."""
    for kind in ("httpGet", "tcpSocket"):
        if "host" in (check.get(kind) or {}):
            yield f"{path}.{kind}.host: lets the node ask another host"
    yield from _grace(path, check)


def _security(path: str, security: Json | None, forbidden: tuple[str, ...]) -> Iterator[str]:
    if security is None:
        yield f"{path}: cannot be removed"
        return
    for field in forbidden:
        if field in security:
            yield f"{path}.{field}: is not for a template"
    if "runAsNonRoot" in security and security["runAsNonRoot"] is not True:
        yield f"{path}.runAsNonRoot: must stay true"
    if security.get("runAsUser") is not None and not _is_user(security["runAsUser"]):
        yield f"{path}.runAsUser: must be a number above 0 (root)"


def _is_user(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
