"""Pods as the API server shows them, reduced to what decisions need."""

from typing import Any

import pytest

from longshore.api import contract
from longshore.api.names import Component
from longshore_operator.identity import Identity
from longshore_operator.pod_view import ServerEnd, pod_view

JOB = {"apiVersion": "longshore.dev/v1alpha1", "kind": "RLJob", "name": "demo", "uid": "job-uid", "controller": True}


def pod(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    labels = Identity("demo", "team", "job-uid", 1).pod_labels(Component.WORKER, 1, 2)
    own = {"name": "longshore", "env": [{"name": "LONGSHORE_ATTEMPT", "value": "2"}]}
    return {
        "metadata": {
            "name": "demo-worker-1",
            "namespace": "team",
            "uid": "u1",
            "resourceVersion": "7",
            "labels": labels,
            "ownerReferences": [JOB],
            **metadata,
        },
        "spec": {"nodeName": "node-0", "containers": [own]},
        "status": status or {},
    }


def container(state: dict[str, Any], name: str = "longshore") -> dict[str, Any]:
    return {"name": name, "state": state}


@pytest.mark.parametrize("labels", [{}, {"longshore.dev/attempt": "9", "longshore.dev/job": "other"}])
def test_identity_comes_from_owner_name_and_environment(labels: dict[str, str]) -> None:
    view = pod_view(pod(labels=labels))
    assert (view.job, view.owner_uid, view.component, view.index, view.attempt) == (
        "demo", "job-uid", Component.WORKER, 1, 2,
    )  # fmt: skip
    assert (view.phase, view.scheduled, view.ready, view.deleting) == ("Pending", True, False, False)


def test_labels_that_were_edited_are_shown_with_what_they_must_be() -> None:
    assert pod_view(pod()).wrong_labels == ()
    found = pod()
    del found["metadata"]["labels"]["longshore.dev/job"]
    found["metadata"]["labels"] |= {"app.kubernetes.io/managed-by": "platform", "team": "rl"}
    wrong = dict(pod_view(found).wrong_labels)
    assert wrong == {"longshore.dev/job": "demo", "app.kubernetes.io/managed-by": "longshore"}


@pytest.mark.parametrize("name", ["demo-worker--1", "demo-worker-65536", "demo-worker-01", "demo-helper-1", "demo"])
def test_no_pod_of_a_job_has_such_a_name(name: str) -> None:
    """Everybody who may create pods can write any owner."""
    with pytest.raises(ValueError, match=r"demo|Component"):
        pod_view(pod(name=name))


def test_a_deletion_timestamp_means_that_the_pod_is_leaving() -> None:
    assert pod_view(pod(deletionTimestamp="2026-01-01T00:00:00Z")).deleting


def test_conditions_give_readiness_disruption_and_the_schedulers_words() -> None:
    view = pod_view(
        pod(
            {
                "conditions": [
                    {"type": "Ready", "status": "True"},
                    {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"},
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"},
                ]
            }
        )
    )
    assert (view.ready, view.disruption, view.unschedulable) == (True, "PreemptionByScheduler", "0/1 nodes")


def test_the_exit_of_our_container_counts_and_not_that_of_a_sidecar() -> None:
    view = pod_view(
        pod(
            {
                "phase": "Failed",
                "containerStatuses": [
                    container({"terminated": {"exitCode": 1}}, "sidecar"),
                    container({"terminated": {"exitCode": 0, "message": " done\n"}}),
                ],
            }
        )
    )
    assert (view.exit_code, view.termination_message) == (0, "done")


def test_a_pod_that_kueue_holds_back_by_itself_says_how_to_stop_that() -> None:
    """With its integration of pods on, and RLJob unknown to it."""
    waiting = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
    held = pod({"phase": "Pending", "conditions": [waiting]})
    assert pod_view(held).unschedulable is None
    held["spec"] = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    assert "add RLJob.v1alpha1.longshore.dev to integrations.externalFrameworks" in (pod_view(held).unschedulable or "")


def test_a_pod_that_a_gate_of_somebody_else_holds_back_names_the_gate() -> None:
    waiting = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
    held = pod({"phase": "Pending", "conditions": [waiting]})
    held["spec"] = {"schedulingGates": [{"name": "example.com/licence"}, {"name": "kueue.x-k8s.io/topology"}]}
    assert (pod_view(held).unschedulable or "").endswith("whoever set them removes them: example.com/licence")


@pytest.mark.parametrize(
    "raised",
    [
        "ValueError: no such thing",
        "KeyboardInterrupt",
        "pydantic.ValidationError: 1 error\nn\n  no integer\n    see https://x",
    ],
)
def test_of_a_traceback_what_was_raised_is_what_a_pod_said_last(raised: str) -> None:
    frames = "Traceback (most recent call last):\n  File 'main.py', line 3, in <module>\n    run()\n    ~~~^^\n"
    ended = container({"terminated": {"exitCode": 1, "message": f"a line of the log\n{frames}{raised}\n"}})
    view = pod_view(pod({"phase": "Failed", "containerStatuses": [ended]}))
    assert view.termination_message == raised


def test_of_an_evicted_pod_the_node_says_why_and_not_its_last_words() -> None:
    ended = container({"terminated": {"exitCode": 137, "message": "the pod was asked to stop"}})
    status = {"phase": "Failed", "message": "The node was low on resource: memory.", "containerStatuses": [ended]}
    assert pod_view(pod(status | {"reason": "Evicted"})).termination_message == "The node was low on resource: memory."
    assert pod_view(pod(status)).termination_message == "the pod was asked to stop"


def test_pod_that_was_killed_for_its_memory_has_the_limit_of_our_container() -> None:
    killed = pod({"containerStatuses": [container({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})]})
    killed["spec"] = {
        "containers": [
            {"name": "sidecar", "resources": {"limits": {"memory": "1Gi"}}},
            {"name": contract.CONTAINER, "resources": {"limits": {"memory": "9Gi"}}},
        ]
    }
    view = pod_view(killed)
    assert (view.is_out_of_memory, view.memory_limit) == (True, "9Gi")
    killed["spec"]["containers"].pop()
    assert pod_view(killed).memory_limit == ""


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (64, "Failed")])
def test_a_pod_has_ended_when_our_container_has_also_if_a_sidecar_still_runs(code: int, phase: str) -> None:
    statuses = [container({"running": {}}, "sidecar"), container({"terminated": {"exitCode": code}})]
    view = pod_view(pod({"phase": "Running", "containerStatuses": statuses}))
    assert (view.terminal, view.phase) == (True, phase)
    assert (view.holds_resources, view.others_stay) == (True, True)


def test_a_pod_that_is_about_to_end_holds_resources_and_keeps_nothing_running() -> None:
    """Its sidecars end after our container, and its phase changes after all of them."""
    sidecar, ours = container({"running": {}}, "sidecar"), container({"terminated": {"exitCode": 0}})
    for sidecars in ([sidecar], []):
        status = {"phase": "Running", "containerStatuses": [ours], "initContainerStatuses": sidecars}
        view = pod_view(pod(status))
        assert (view.terminal, view.holds_resources, view.others_stay) == (True, True, False)


@pytest.mark.parametrize(
    "states",
    [
        {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:00Z"}}},
        {
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:00Z"}},
        },
    ],
)
@pytest.mark.parametrize("ours", [{"running": {}}, {"waiting": {"reason": "PodInitializing"}}])
def test_the_end_of_a_server_is_shown_and_is_no_end_of_the_pod(states: dict[str, Any], ours: dict[str, Any]) -> None:
    servers = [{"name": "server", **states}]
    view = pod_view(pod({"phase": "Running", "initContainerStatuses": servers, "containerStatuses": [container(ours)]}))
    assert view.server_end == ServerEnd(137, "2026-01-01T00:00:00Z", is_out_of_memory=True)
    assert (view.phase, view.exit_code, view.others_run) == ("Running", None, False)


def test_an_init_container_that_cannot_start_speaks_for_the_pod() -> None:
    view = pod_view(
        pod(
            {
                "initContainerStatuses": [
                    container({"waiting": {"reason": "ImagePullBackOff", "message": "no"}}, "init")
                ],
                "containerStatuses": [container({"waiting": {"reason": "PodInitializing"}})],
            }
        )
    )
    assert (view.waiting_reason, view.waiting_message) == ("ImagePullBackOff", "no")


@pytest.mark.parametrize("owner", [[], [JOB | {"kind": "ReplicaSet"}], [JOB | {"controller": False}]])
def test_a_pod_that_no_rljob_controls_is_not_ours(owner: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="no RLJob controls the pod"):
        pod_view(pod(ownerReferences=owner))
