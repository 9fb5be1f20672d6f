"""The table of built-in resources."""

from collections.abc import Callable

from longshore_devcluster.apiserver.builtin import more_defaults, pods, printers, workloads
from longshore_devcluster.apiserver.builtin.validation import VALIDATORS
from longshore_devcluster.apiserver.resources import (
    ALL_VERBS,
    ITEM_VERBS,
    Printer,
    Resource,
    Subresource,
    by_name,
)
from longshore_devcluster.apiserver.schema.builtin import builtin_types
from longshore_devcluster.apiserver.schema.node import Object, Schema

_CREATE = ("create",)


def _text(path: str) -> Callable[[Object], str]:
    """Return the getter of a selectable field, in Go's spelling of values."""
    keys = path.split(".")

    def get(obj: Object) -> str:
        node: object = obj
        for key in keys:
            node = node.get(key) if isinstance(node, dict) else None
        if isinstance(node, bool):
            return "true" if node else "false"
        return "" if node is None else str(node)

    return get


def _resource(
    group: str,
    kind: str,
    plural: str,
    *,
    namespaced: bool = True,
    short: str = "",
    categories: str = "",
    status: bool = False,
    subresources: tuple[Subresource, ...] = (),
    printer: Printer = printers.NAME_AND_AGE,
    select: str = "",
    schema: Schema | None = None,
    verbs: tuple[str, ...] = ALL_VERBS,
    fill: Callable[[Object], None] | None = None,
    generation: bool = False,
    **behaviour: bool,
) -> Resource:
    subs = (*subresources, Subresource("status", kind, ITEM_VERBS)) if status else subresources
    return Resource(
        group=group,
        version="v1",
        kind=kind,
        plural=plural,
        singular=kind.lower(),
        namespaced=namespaced,
        schema=schema or builtin_types()[kind],
        printer=printer,
        list_kind=f"{kind}List",
        short_names=tuple(short.split()),
        categories=tuple(categories.split()),
        verbs=verbs,
        subresources=tuple(sorted(subs, key=lambda sub: sub.name)),
        selectable={**by_name(namespaced), **{path: _text(path) for path in select.split()}},
        validate=VALIDATORS.get(kind, lambda new, old: []),
        counts_generation=generation,
        fill_defaults=fill or (lambda obj: None),
        **behaviour,  # type: ignore[arg-type]
    )


_SCALE = Subresource("scale", "Scale", ("get", "patch"), "autoscaling", "v1")
_POD_SUBRESOURCES = (
    Subresource("binding", "Binding", _CREATE),
    Subresource("exec", "PodExecOptions", ("create", "get")),
    Subresource("portforward", "PodPortForwardOptions", ("create", "get")),
    Subresource("log", "Pod", ("get",)),
)
_TOKEN = Subresource("token", "TokenRequest", _CREATE, "authentication.k8s.io", "v1")
_POD_FIELDS = (
    "spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName spec.hostNetwork "
    "status.phase status.podIP status.nominatedNodeName"
)
_EVENT_FIELDS = (
    "involvedObject.kind involvedObject.namespace involvedObject.name involvedObject.uid "
    "involvedObject.apiVersion involvedObject.resourceVersion involvedObject.fieldPath reason "
    "reportingComponent source type"
)


def _core() -> list[Resource]:
    def core(kind: str, plural: str, **rest: object) -> Resource:
        return _resource("", kind, plural, **rest)  # type: ignore[arg-type]

    return [
        core("ConfigMap", "configmaps", short="cm"),
        core(
            "Event", "events", short="ev", printer=printers.EVENTS, select=_EVENT_FIELDS,
            schema=builtin_types()["CoreEvent"],
        ),
        core(
            "Namespace", "namespaces", namespaced=False, short="ns", status=True,
            select="status.phase", fill=more_defaults.namespace,
            delete_answers_object=True,
        ),
        core(
            "Node", "nodes", namespaced=False, short="no", status=True, printer=printers.NODES,
            select="spec.unschedulable", fill=more_defaults.node,
        ),
        core(
            "PersistentVolumeClaim", "persistentvolumeclaims", short="pvc", status=True,
            printer=printers.CLAIMS, fill=more_defaults.volume_claim, delete_answers_object=True,
        ),
        core(
            "PersistentVolume", "persistentvolumes", namespaced=False, short="pv", status=True,
            fill=more_defaults.volume, delete_answers_object=True,
        ),
        core(
            "Pod", "pods", short="po", categories="all", status=True, printer=printers.PODS,
            select=_POD_FIELDS, subresources=_POD_SUBRESOURCES, fill=pods.fill_pod, generation=True,
            delete_answers_object=True,
        ),
        core("Secret", "secrets", printer=printers.SECRETS, select="type", fill=more_defaults.secret),
        core(
            "ServiceAccount", "serviceaccounts", short="sa", subresources=(_TOKEN,),
            delete_answers_object=True,
        ),
        core(
            "Service", "services", short="svc", categories="all", status=True, 
            select="spec.clusterIP spec.type", fill=more_defaults.service, delete_answers_object=True,
        ),
    ]  # fmt: skip


def _workloads() -> list[Resource]:
    def scaled(kind: str, plural: str, short: str, printer: Printer, fill: Callable[[Object], None]) -> Resource:
        return _resource(
            "apps", kind, plural, short=short, categories="all", status=True, subresources=(_SCALE,),
            printer=printer, fill=fill, generation=True,
        )  # fmt: skip

    return [
        scaled("Deployment", "deployments", "deploy", printers.DEPLOYMENTS, workloads.fill_deployment),
        scaled("ReplicaSet", "replicasets", "rs", printers.NAME_AND_AGE, workloads.fill_replica_set),
    ]


def _access() -> list[Resource]:
    rbac = "rbac.authorization.k8s.io"
    return [
        _resource(rbac, "ClusterRoleBinding", "clusterrolebindings", namespaced=False, fill=more_defaults.role_binding),
        _resource(rbac, "ClusterRole", "clusterroles", namespaced=False, printer=printers.CREATED_AT),
        _resource(rbac, "RoleBinding", "rolebindings", fill=more_defaults.role_binding),
        _resource(rbac, "Role", "roles", printer=printers.CREATED_AT),
        _resource(
            "authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews", namespaced=False, verbs=_CREATE
        ),
        _resource(
            "authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False,
            verbs=_CREATE,
        ),
    ]  # fmt: skip


def _others() -> list[Resource]:
    admission = "admissionregistration.k8s.io"
    return [
        _resource(
            "coordination.k8s.io", "Lease", "leases",
            needs_version_to_update=True, creates_on_update=True,
        ),
        _resource(
            "apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False,
            short="crd crds", categories="api-extensions", status=True, printer=printers.CREATED_AT,
            generation=True, needs_version_to_update=True, fill=more_defaults.custom_resource_definition,
        ),
        _resource(
            "networking.k8s.io", "NetworkPolicy", "networkpolicies", short="netpol", generation=True,
            fill=more_defaults.network_policy,
        ),
        _resource(
            "policy", "PodDisruptionBudget", "poddisruptionbudgets", short="pdb", status=True,
            generation=True, fill=more_defaults.disruption_budget,
        ),
        _resource(
            "storage.k8s.io", "StorageClass", "storageclasses", namespaced=False, short="sc",
            fill=more_defaults.storage_class, delete_answers_object=True,
        ),
        _resource(
            "scheduling.k8s.io", "PriorityClass", "priorityclasses", namespaced=False, short="pc",
            fill=more_defaults.priority_class,
        ),
        _resource("discovery.k8s.io", "EndpointSlice", "endpointslices"),
        _resource(
            admission, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", namespaced=False,
            categories="api-extensions", status=True, generation=True, fill=more_defaults.admission_policy,
        ),
        _resource(
            admission, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", namespaced=False,
            categories="api-extensions", generation=True, fill=more_defaults.admission_policy_binding,
        ),
    ]  # fmt: skip


def builtin_resources() -> list[Resource]:
    return [*_core(), *_workloads(), *_access(), *_others()]
