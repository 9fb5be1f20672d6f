"""What somebody deletes while a job runs comes back; a job that somebody deletes gives back what it has."""

import os
from typing import Any

import pytest
from kubernetes import client

from tests.contract.operator.harness import HOLD, Jobs, eventually, job_spec

pytestmark = pytest.mark.usefixtures("operator")


def test_children_that_are_deleted_while_a_job_runs_come_back(jobs: Jobs) -> None:
    jobs.create(**job_spec(replicas=1))
    jobs.wait_phase("Running")
    core, namespace = jobs.cluster.core, jobs.namespace
    rbac, network = client.RbacAuthorizationV1Api(jobs.cluster.client), client.NetworkingV1Api(jobs.cluster.client)
    children: list[tuple[Any, Any, str]] = [
        (core.read_namespaced_service_account, core.delete_namespaced_service_account, "demo-coordinator"),
        (rbac.read_namespaced_role, rbac.delete_namespaced_role, "demo-coordinator"),
        (rbac.read_namespaced_role_binding, rbac.delete_namespaced_role_binding, "demo-coordinator"),
        (network.read_namespaced_network_policy, network.delete_namespaced_network_policy, "demo-pods"),
        (core.read_namespaced_service, core.delete_namespaced_service, "demo-pods"),
    ]
    for read, delete, name in children:
        before = read(name, namespace).metadata.uid
        delete(name, namespace)

        def is_back(read: Any = read, name: str = name, before: str = before) -> bool:
            try:
                return bool(read(name, namespace).metadata.uid != before)
            except client.ApiException as error:
                assert error.status == 404
                return False

        eventually(f"{name} is back", is_back)
    assert jobs.wait_phase("Running")["attempt"] == 1


@pytest.mark.skipif(
    "LONGSHORE_TEST_KUBECONFIG" in os.environ,
    reason="a real kubelet keeps an immutable Secret as long as a pod of its node has it, so that another pod starts",
)
def test_a_secret_that_is_deleted_is_made_again_for_a_new_attempt(jobs: Jobs) -> None:
    jobs.create(**job_spec(replicas=1))
    jobs.wait_phase("Running")
    core, namespace = jobs.cluster.core, jobs.namespace
    (secret,) = (one.metadata.name for one in core.list_namespaced_secret(namespace).items)
    core.delete_namespaced_secret(secret, namespace)
    jobs.delete_pod("demo-worker-0")
    status = jobs.wait_phase("Running", attempt=2)
    assert status["failures"] == 0
    assert "SecretDeleted" in jobs.event_reasons()
    assert [one.metadata.name for one in core.list_namespaced_secret(namespace).items] == [secret]


def test_a_deleted_job_that_a_finalizer_holds_has_no_pods(jobs: Jobs) -> None:
    jobs.create(**job_spec(coordinator=HOLD, replicas=1))
    jobs.wait_phase("Running")
    hold = {"metadata": {"finalizers": ["tenant.example/never"]}}
    jobs._custom("patch_namespaced_custom_object", "demo", hold)
    jobs.delete()
    eventually("no pod is left", lambda: not jobs.pods())
    ready = jobs.wait_condition("Ready", "BeingDeleted")
    assert "tenant.example/never" in ready["message"]
    jobs._custom("patch_namespaced_custom_object", "demo", {"metadata": {"finalizers": None}})
    eventually("the job is gone", lambda: jobs.get() is None)
