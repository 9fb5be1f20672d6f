"""Assignments on a cluster: a test client tells what a coordinator would, the operator answers through the status."""

import urllib.request
from typing import Any

from kubernetes import watch

from tests.contract.operator.harness import Jobs, Operator, eventually, job_spec

ROLE = "longshore.dev/role"
STREAMED = {"handover": "Streamed"}
ADAPTIVE = {"engine": {"parallelism": "Adaptive"}}


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


def test_every_round_is_answered(jobs: Jobs, operator: Operator) -> None:
    jobs.create(**job_spec(), rollout=STREAMED)
    jobs.wait_phase("Running")
    for number in range(1, 21):
        await_epoch(jobs, at_milestone(number), number + 1)
    assert jobs.status()["assignment"]["overlay"]["round"] == 20


def test_a_rejection_is_reported_by_one_event(jobs: Jobs, operator: Operator) -> None:
    jobs.create(**job_spec(), rollout=STREAMED)
    jobs.wait_phase("Running")
    await_epoch(jobs, at_milestone(1), 2)
    for fraction in (0.4, 0.5):
        refused = at_milestone(1, rejectedEpoch=2, rejectedReason="round 1 has its batch already")
        jobs.report(refused | {"round": refused["round"] | {"fractionFinished": fraction}})
        eventually("the rejection is reported", lambda: "AssignmentRejected" in jobs.event_reasons())
    await_epoch(jobs, at_milestone(2), 3)
    (event,) = [event for event in jobs.events() if event.reason == "AssignmentRejected"]
    assert (event.type, event.count) == ("Warning", 1)
    assert event.message == "assignment 2 was not carried out: round 1 has its batch already"
    assert jobs.status()["assignment"]["epoch"] == 3
    assert "longshore_operator_assignment_rejections_total 1.0" in metric_lines(operator)


def test_an_alarm_is_one_event_and_a_condition_until_it_is_over(jobs: Jobs, operator: Operator) -> None:
    jobs.create(**job_spec())
    jobs.wait_phase("Running")
    notice = {"number": 1, "reason": "RewardsAllZero", "message": "every reward of the last 3 steps is 0"}
    alarm = {"reason": "RewardsAllZero", "message": "every reward of the last 3 steps is 0", "step": 3}
    jobs.report({"attempt": 1, "step": 3, "notices": [notice], "alarms": [alarm]})
    condition = jobs.wait_condition("TrainingAlarm", "RewardsAllZero")
    assert (condition["status"], condition["message"]) == ("True", f"since step 3: {alarm['message']}")
    jobs.report({"attempt": 1, "step": 4, "notices": [notice], "alarms": []})
    assert jobs.wait_condition("TrainingAlarm", "Cleared")["status"] == "False"
    (event,) = [event for event in jobs.events() if event.reason == "RewardsAllZero"]
    assert (event.type, event.count, event.message) == ("Warning", 1, notice["message"])
