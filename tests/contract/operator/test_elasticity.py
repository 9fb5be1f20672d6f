"""Assignments on a cluster: a test client tells what a coordinator would, the operator answers through the status."""

import urllib.request
from typing import Any

from kubernetes import watch

from tests.contract.operator.harness import Jobs, Operator, eventually, job_spec

ROLE = "longshore.dev/role"
STREAMED = {"handover": "Streamed"}


def at_milestone(number: int, **more: Any) -> dict[str, Any]:
    """Telemetry of a round in which half of the pods may go."""
    pods = [{"pod": pod, "gpus": 1, "kvCapacityTokens": 1000, "runningTokens": 50 * pod} for pod in range(2)]
    load = {"projectedKvPeakTokens": 300, "pods": pods}
    this_round = {"number": number, "kind": "Short", "fractionFinished": 0.3, "load": load}
    benefit = {"rolloutLongerSeconds": 1.0, "trainingShorterSeconds": 3.0, "wanted": True}
    return {"attempt": 1, "step": number - 1, "round": this_round, "repurposing": {"Short": benefit}, **more}


def await_epoch(jobs: Jobs, runtime: dict[str, Any], epoch: int) -> None:
    """Report telemetry, and watch for the assignment that answers it as a coordinator does."""
    job = jobs.get()
    assert job is not None
    stream = watch.Watch().stream(
        jobs.cluster.custom.list_namespaced_custom_object, "longshore.dev", "v1alpha1", jobs.namespace, "rljobs",
        resource_version=job["metadata"]["resourceVersion"], timeout_seconds=60,
    )  # fmt: skip
    jobs.report(runtime)
    for event in stream:
        if event["object"].get("status", {}).get("assignment", {}).get("epoch", 0) >= epoch:
            return
    raise AssertionError(f"no epoch {epoch} within 60 s; the status is {jobs.status()}")


def metric_lines(operator: Operator) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{operator.health_port}/metrics", timeout=60) as response:
        return list(response.read().decode().splitlines())


def test_pods_go_to_training_for_a_round_and_labels_follow_the_acknowledgement(jobs: Jobs, operator: Operator) -> None:
    jobs.create(**job_spec(), rollout=STREAMED)
    jobs.wait_phase("Running")
    await_epoch(jobs, at_milestone(1), 2)
    assignment = jobs.status()["assignment"]
    assert assignment["overlay"] == {"round": 1, "attempt": 1, "trainerPods": [0]}
    assert jobs.worker_labels(ROLE) == ["rollout", "rollout"], "asked for, but not yet true"

    uid = jobs.pods()["demo-worker-0"].metadata.uid
    jobs.report(at_milestone(1, appliedEpoch=2, trainerPods=[0], tpSize=1))
    eventually("the label follows", lambda: jobs.worker_labels(ROLE) == ["trainer", "rollout"])
    eventually("GPUs are counted by role", lambda: jobs.status()["gpus"] == {"rollout": 1, "trainer": 1, "judge": 0})
    assert jobs.wait_condition("Repurposed", "Acknowledged")["message"] == assignment["reason"]
    gpus = f'longshore_operator_gpus{{job_name="demo",job_namespace="{jobs.namespace}",role="trainer"}} 1.0'
    assert gpus in metric_lines(operator)
    assert jobs.pods()["demo-worker-0"].metadata.uid == uid, "the pod holds its GPU and runs on"

    jobs.report({"attempt": 1, "step": 1, "appliedEpoch": 2, "tpSize": 1})
    eventually("the pod samples again", lambda: jobs.worker_labels(ROLE) == ["rollout", "rollout"])
    assert jobs.wait_condition("Repurposed", "OverlayEnded")["status"] == "False"
    await_epoch(jobs, at_milestone(2, appliedEpoch=2, tpSize=1), 3)
    assert jobs.status()["assignment"]["overlay"]["round"] == 2
    eventually("events tell of both", lambda: jobs.event_reasons().count("Repurposing") == 2)
    assert jobs.event_reasons().count("Repurposed") == 1, "one of them was acknowledged"
    assert jobs.wait_phase("Running")["attempt"] == 1
