"""Jobs on a cluster: real API server, real processes in the pods, and an operator with the chart's rights only."""

from typing import Any

import pytest
from kubernetes import client

from tests.contract.operator.harness import (
    ALLOWED_PRIORITY_CLASS,
    HOLD,
    LITTLE,
    RELEASE_NAMESPACE,
    SERVICE_ACCOUNT,
    Jobs,
    Operator,
    eventually,
    job_spec,
    shell,
)

pytestmark = pytest.mark.usefixtures("operator")

_EARLIER_JOB = {
    "apiVersion": "longshore.dev/v1alpha1",
    "kind": "RLJob",
    "name": "demo",
    "uid": "00000000-0000-4000-8000-000000000000",
    "controller": True,
}


def test_a_job_runs_and_completes(jobs: Jobs) -> None:
    wait = 'trap "exit 143" TERM; until [ -e "$LONGSHORE_STORAGE/stop" ]; do sleep 0.1; done'
    jobs.create(**job_spec(coordinator=f'{wait}; echo "final model: done" > "$LONGSHORE_TERMINATION_LOG"'))
    status = jobs.wait_phase("Running")
    assert status["attempt"] == 1
    assert status["workers"] == {"desired": 2, "ready": 2}
    assert status["gpus"] == {"rollout": 2, "trainer": 0, "judge": 0}
    assert status["assignment"]["epoch"] == 1
    pods = jobs.pods()
    assert sorted(pods) == ["demo-coordinator", "demo-worker-0", "demo-worker-1"]
    address = {"name": "LONGSHORE_COORDINATOR_ADDRESS", "value": pods["demo-coordinator"].status.pod_ip}
    for name in ("demo-worker-0", "demo-worker-1"):
        assert address in [{"name": e.name, "value": e.value} for e in pods[name].spec.containers[0].env]

    jobs.execute("demo-coordinator", 'touch "$LONGSHORE_STORAGE/stop"')
    status = jobs.wait_phase("Succeeded")
    assert jobs.condition("Complete")["message"] == "final model: done"
    assert status["completionTime"]
    eventually("only the ended coordinator is left", lambda: sorted(jobs.pods()) == ["demo-coordinator"])
    assert {"Started", "Finished"} <= set(jobs.event_reasons())


def test_a_container_that_never_ends_does_not_keep_the_gpus_of_a_finished_job(jobs: Jobs) -> None:
    spec = job_spec(coordinator="exit 0", worker=HOLD, replicas=1)
    containers = spec["coordinator"]["template"]["spec"]["containers"]
    containers.append({"name": "shipper", "image": "unused", "command": ["sh", "-c", HOLD]})
    jobs.create(**spec)
    assert jobs.wait_phase("Succeeded")
    eventually("no pod is left", lambda: not jobs.pods())


def test_a_crash_is_retried_after_the_back_off(jobs: Jobs) -> None:
    crash_once = f'if [ "$LONGSHORE_ATTEMPT" = 1 ]; then echo "out of luck" >&2; exit 3; fi; {HOLD}'
    jobs.create(**job_spec(coordinator=crash_once))
    ready = jobs.wait_condition("Ready", "CoordinatorFailed")
    assert "demo-coordinator exited with code 3: out of luck" in ready["message"]
    status = jobs.wait_phase("Running", attempt=2)
    assert status["failures"] == 1


def test_a_deleted_coordinator_is_a_new_attempt_with_new_pods(jobs: Jobs) -> None:
    jobs.create(**job_spec())
    jobs.wait_phase("Running")
    jobs.report({"attempt": 1, "step": 7, "steps": 9})
    old = {pod.metadata.uid for pod in jobs.pods().values()}
    jobs.delete_pod("demo-coordinator")
    status = jobs.wait_phase("Running", attempt=2)
    assert status["failures"] == 0
    assert status["runtime"]["step"] == 7, "the operator leaves the coordinator's part alone"
    pods = jobs.pods()
    assert len(pods) == 3
    assert not old & {pod.metadata.uid for pod in pods.values()}
    assert {pod.metadata.labels["longshore.dev/attempt"] for pod in pods.values()} == {"2"}


def test_a_lost_pod_of_an_environment_is_replaced_in_the_same_attempt(jobs: Jobs) -> None:
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    jobs.cluster.core.patch_namespace(jobs.namespace, {"metadata": {"labels": restricted}})
    game = {"name": "game", "kind": "Task", "pods": {"resources": LITTLE, "template": shell(HOLD)}}
    reward = {"pods": 0, "functions": [{"name": "won", "kind": "Environment"}]}
    jobs.create(**job_spec() | {"data": {"builtin": "Guessing"}, "environments": [game], "reward": reward})
    assert jobs.wait_phase("Running")["environments"]["ready"] == 1
    lost = jobs.delete_pod("demo-environment-0")

    def is_replaced() -> bool:
        counts, pod = jobs.status()["environments"], jobs.pods().get("demo-environment-0")
        return pod is not None and pod.metadata.uid != lost and counts["addresses"] == [pod.status.pod_ip]

    eventually("the coordinator is told the address of the new pod", is_replaced)
    assert (jobs.status()["attempt"], jobs.status()["failures"]) == (1, 0)


def test_a_finished_job_and_all_its_children_go_after_the_time_to_live(jobs: Jobs) -> None:
    jobs.create(**job_spec(coordinator="exit 0"), ttlSecondsAfterFinished=1)
    eventually("the job is deleted", lambda: jobs.get() is None)
    core, namespace = jobs.cluster.core, jobs.namespace

    def leftovers() -> list[Any]:
        lists = (
            core.list_namespaced_pod(namespace),
            core.list_namespaced_service(namespace),
            core.list_namespaced_secret(namespace),
            core.list_namespaced_persistent_volume_claim(namespace),
        )
        return [item.metadata.name for found in lists for item in found.items]

    eventually("all children are collected", lambda: leftovers() == [])


def test_too_many_gpus_show_the_schedulers_words(jobs: Jobs) -> None:
    jobs.create(**job_spec(gpus_per_pod=16, replicas=1))

    def message() -> str | None:
        said = str(jobs.condition("Scheduled").get("message"))
        return said if said.startswith("demo-worker-0: ") else None

    assert "Insufficient longshore.dev/pretend-gpu" in eventually("the worker finds no node", message)
    assert jobs.condition("Scheduled")["reason"] == "Unschedulable"


def test_a_missing_claim_is_named(jobs: Jobs) -> None:
    jobs.create(**job_spec() | {"storage": {"claimName": "nowhere"}})
    assert "nowhere" in jobs.wait_condition("Ready", "StorageNotFound")["message"]


def test_what_the_api_server_refuses_is_shown_and_work_goes_on_when_it_is_corrected(jobs: Jobs) -> None:
    name = ALLOWED_PRIORITY_CLASS
    spec = job_spec()
    spec["coordinator"]["template"]["spec"]["priorityClassName"] = name
    jobs.create(**spec)
    assert f"no PriorityClass with name {name} was found" in jobs.wait_condition("Ready", "ApplyFailed")["message"]
    scheduling = client.SchedulingV1Api(jobs.cluster.client)
    metadata = client.V1ObjectMeta(name=name)
    scheduling.create_priority_class(client.V1PriorityClass(metadata=metadata, value=7))
    try:
        jobs.wait_phase("Running")
    finally:
        scheduling.delete_priority_class(name)


def is_refused(jobs: Jobs, message: str) -> bool | None:
    """Whether a pod is refused with this message: policies take effect a moment after they were created."""
    container = {"name": "main", "image": "unused"}
    pod = {"metadata": {"generateName": "try-"}, "spec": {"containers": [container]}}
    try:
        jobs.cluster.core.create_namespaced_pod(jobs.namespace, pod, dry_run="All")
    except client.ApiException as error:
        return message in error.body or None
    return None


def test_pods_that_a_policy_of_the_cluster_refuses_are_named_with_its_sentence(jobs: Jobs) -> None:
    name = f"no-pods-{jobs.namespace}"
    admission = client.AdmissionregistrationV1Api(jobs.cluster.client)
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    refused = {"expression": "false", "message": "pods of this namespace need a cost centre"}
    policy = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [pods]}, "validations": [refused]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": jobs.namespace}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": here}
    admission.create_validating_admission_policy({"metadata": {"name": name}, "spec": policy})
    admission.create_validating_admission_policy_binding({"metadata": {"name": name}, "spec": binding})
    try:
        eventually("the policy in force", lambda: is_refused(jobs, refused["message"]))
        jobs.create(**job_spec())
        assert refused["message"] in jobs.wait_condition("Ready", "ApplyFailed")["message"]
        assert jobs.pods() == {}
    finally:
        admission.delete_validating_admission_policy_binding(name)
        admission.delete_validating_admission_policy(name)
    jobs.wait_phase("Running")


def test_a_right_that_the_operator_lacks_is_named_and_work_goes_on_when_it_is_given(jobs: Jobs) -> None:
    rbac = client.RbacAuthorizationV1Api(jobs.cluster.client)
    rules = rbac.read_cluster_role(SERVICE_ACCOUNT).rules
    narrow = [rule for rule in rules if "services" not in rule.resources]
    rbac.patch_cluster_role(SERVICE_ACCOUNT, {"rules": narrow})
    try:
        jobs.create(**job_spec())
        message = jobs.wait_condition("Ready", "ApplyFailed")["message"]
        assert f'User "system:serviceaccount:{RELEASE_NAMESPACE}:{SERVICE_ACCOUNT}" cannot' in message
        assert jobs.pods() == {}
    finally:
        rbac.patch_cluster_role(SERVICE_ACCOUNT, {"rules": rules})
    jobs.wait_phase("Running")


def test_a_deleted_namespace_takes_its_jobs_with_it_and_other_jobs_go_on(jobs: Jobs) -> None:
    core, doomed = jobs.cluster.core, f"{jobs.namespace}-doomed"
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=doomed)))
    there = Jobs(jobs.cluster, doomed)
    there.create(**job_spec())
    there.wait_phase("Running")
    core.delete_namespace(doomed)

    def gone() -> bool:
        try:
            core.read_namespace(doomed)
        except client.ApiException as error:
            return bool(error.status == 404)
        return False

    eventually("the namespace is gone", gone)
    assert (there.get(), there.pods()) == (None, {})
    jobs.create(**job_spec(coordinator="exit 0"))
    jobs.wait_phase("Succeeded")


def test_nothing_is_left_in_the_object_by_the_framework(jobs: Jobs, operator: Operator) -> None:
    jobs.create(**job_spec())
    jobs.wait_phase("Running")
    job = jobs.get()
    assert job is not None
    assert "finalizers" not in job["metadata"]
    assert not [name for name in job["metadata"].get("annotations", {}) if "kopf" in name]
    assert "kopf" not in str(job.get("status"))


def test_a_child_of_an_earlier_job_of_the_name_is_waited_for(jobs: Jobs) -> None:
    held = {"name": "demo-storage", "finalizers": ["example.org/held"], "ownerReferences": [_EARLIER_JOB]}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    jobs.cluster.core.create_namespaced_persistent_volume_claim(jobs.namespace, {"metadata": held, "spec": claim})
    jobs.create(**job_spec())
    condition = jobs.wait_condition("Ready", "ApplyFailed")
    assert condition["message"] == (
        "PersistentVolumeClaim demo-storage of an earlier job is still being deleted: this job starts when it is gone"
    )
    released = {"metadata": {"finalizers": None}}
    jobs.cluster.core.patch_namespaced_persistent_volume_claim("demo-storage", jobs.namespace, released)
    jobs.wait_phase("Running")


def test_the_tokens_of_an_earlier_job_of_the_name_are_not_used(jobs: Jobs) -> None:
    """They are deleted with it, at any moment."""
    tokens: list[set[str]] = []
    for _ in range(2):
        jobs.create(**job_spec())
        status = jobs.wait_phase("Running")
        assert (status["attempt"], status["failures"]) == (1, 0)
        volumes = jobs.pods()["demo-worker-0"].spec.volumes
        tokens.append({volume.secret.secret_name for volume in volumes if volume.secret is not None})
        jobs.delete()
        eventually("the job is deleted", lambda: jobs.get() is None)
    assert tokens[0] and not tokens[0] & tokens[1]


def test_a_strange_pod_under_one_of_our_names_is_named(jobs: Jobs) -> None:
    container = client.V1Container(name="main", image="any", command=["sh", "-c", HOLD])
    stranger = client.V1Pod(
        metadata=client.V1ObjectMeta(name="demo-coordinator"), spec=client.V1PodSpec(containers=[container])
    )
    jobs.cluster.core.create_namespaced_pod(jobs.namespace, stranger)
    jobs.create(**job_spec())
    condition = jobs.wait_condition("Ready", "ApplyFailed")
    assert "pod demo-coordinator exists and does not belong to this job" in condition["message"]
    jobs.cluster.core.delete_namespaced_pod("demo-coordinator", jobs.namespace, grace_period_seconds=0)
    jobs.wait_phase("Running")
