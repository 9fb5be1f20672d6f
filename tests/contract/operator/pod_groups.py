"""PodGroups of schedulers for tests: definitions with the documented fields that Longshore uses, and no others."""

import os
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from longshore.api.scheduling import PodGroupKind
from longshore_operator.pod_group_api import APIS
from tests.contract.operator.harness import Cluster, Jobs, eventually

Json = dict[str, Any]

_COUNT = {"type": "integer", "format": "int32"}
_TEXT = {"type": "string"}
_QUANTITIES = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
    },
}
_FIELDS = {
    PodGroupKind.VOLCANO: {
        "minMember": _COUNT, "minResources": _QUANTITIES, "queue": _TEXT, "priorityClassName": _TEXT,
    },
    PodGroupKind.SCHEDULER_PLUGINS: {
        "minMember": _COUNT, "minResources": _QUANTITIES, "scheduleTimeoutSeconds": _COUNT,
    },
}  # fmt: skip


def is_served(cluster: Cluster, kind: PodGroupKind) -> bool:
    """Whether the cluster has PodGroups of a kind."""
    try:
        cluster.custom.list_cluster_custom_object(APIS[kind].group, APIS[kind].version, "podgroups")
    except ApiException as error:
        if error.status != 404:
            raise
        return False
    return True


def install_definition(cluster: Cluster, kind: PodGroupKind) -> None:
    """The PodGroups of a scheduler, without the scheduler."""
    api = APIS[kind]
    spec = {"type": "object", "properties": _FIELDS[kind]}
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": api.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup", "listKind": "PodGroupList"}
    metadata: Json = {"name": f"podgroups.{api.group}"}
    if kind is PodGroupKind.SCHEDULER_PLUGINS:
        # A real API server protects this domain.
        metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, for a test"}
    client.ApiextensionsV1Api(cluster.client).create_custom_resource_definition(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": metadata,
            "spec": {"group": api.group, "scope": "Namespaced", "names": names, "versions": [version]},
        }
    )
    eventually(f"PodGroups of {kind} are served", lambda: is_served(cluster, kind))


def remove_definition(cluster: Cluster, kind: PodGroupKind) -> None:
    name = f"podgroups.{APIS[kind].group}"
    client.ApiextensionsV1Api(cluster.client).delete_custom_resource_definition(name)
    eventually(f"PodGroups of {kind} are gone", lambda: not is_served(cluster, kind))


def pod_group(cluster: Cluster, kind: PodGroupKind, namespace: str, job: str = "demo") -> Json:
    """The PodGroup of a job; empty while there is none."""
    api = APIS[kind]
    try:
        found: Json = cluster.custom.get_namespaced_custom_object(
            api.group, api.version, namespace, "podgroups", f"{job}-rljob"
        )
    except ApiException as error:
        if error.status == 404:
            return {}
        raise
    return found


def start(jobs: Jobs, name: str = "demo") -> None:
    """Wait for the coordinator, without whose address there are no members.

    Where nodes are simulated, its volume is provided here, and its address too: no kubelet gives it one.
    """
    coordinator = f"{name}-coordinator"
    if "LONGSHORE_TEST_KUBECONFIG" in os.environ:
        eventually("the claim exists", lambda: _claims(jobs, name))
        if _claims(jobs, name)[0].spec.storage_class_name is None:
            _provide_volume(jobs, name)
    eventually("the coordinator has a node", lambda: (pod := jobs.pods().get(coordinator)) and pod.spec.node_name)
    if "LONGSHORE_TEST_KUBECONFIG" in os.environ and jobs.pods()[coordinator].status.pod_ip is None:
        status = {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}
        jobs.cluster.core.patch_namespaced_pod_status(coordinator, jobs.namespace, {"status": status})


def _claims(jobs: Jobs, name: str) -> list[Any]:
    found = jobs.cluster.core.list_namespaced_persistent_volume_claim(jobs.namespace).items
    return [claim for claim in found if claim.metadata.name == f"{name}-storage"]


def _provide_volume(jobs: Jobs, name: str) -> None:
    """A volume for the claim of a job, which goes with the claim."""
    volume = f"{jobs.namespace}-{name}"
    if _claims(jobs, name)[0].status.phase == "Bound":
        return
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "hostPath": {"path": "/unused"},
        "claimRef": {"namespace": jobs.namespace, "name": f"{name}-storage"},
    }
    jobs.cluster.core.create_persistent_volume({"metadata": {"name": volume}, "spec": spec})
    eventually("the claim is bound", lambda: _claims(jobs, name)[0].status.phase == "Bound")
    jobs.cluster.core.delete_persistent_volume(volume)
