"""Judges with pods of their own: placement Pool, on a cluster in memory."""

import base64
from typing import Any

import pytest

from longshore.api import contract
from longshore.api.contract import ExitCode
from longshore.api.names import Component
from longshore_operator.pods import coordinator_pod, judge_pod, reward_pod, worker_pod
from tests.unit.operator.model import CONFIG, Cluster, make_job, running_cluster

Json = dict[str, Any]

ALL_PODS = [
    "demo-coordinator", "demo-judge-0", "demo-judge-1", "demo-judge-2", "demo-reward-0", "demo-worker-0",
    "demo-worker-1",
]  # fmt: skip


def judged(*, reward_pods: int = 1, **pool: Any) -> Json:
    """Two pods for one judge, one for another, and a function that needs none."""
    first = {"replicas": 2, "gpusPerPod": 4, "gpuResourceName": "amd.com/gpu", **pool}
    functions = [
        {"name": "task", "kind": "Task"},
        {"name": "critic", "kind": "Judge", "judge": {"placement": "Pool", "modelPath": "a", "pool": first}},
        {"name": "stylist", "kind": "Judge", "judge": {"placement": "Pool", "modelPath": "b", "pool": {}}},
    ]
    return {"reward": {"pods": reward_pods, "functions": functions}}


@pytest.fixture
def running() -> Cluster:
    """A job with two workers and three judge pods, all ready."""
    return running_cluster(**judged())


def environment(pod: Json) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}


def volumes(pod: Json) -> dict[str, Json]:
    return {volume["name"]: volume for volume in pod["spec"]["volumes"]}


def test_judge_pods_are_counted_and_the_job_is_not_ready_without_them(running: Cluster) -> None:
    assert running.names() == ALL_PODS
    assert running.condition("Ready") == ("True", "PodsReady", "all 7 pods are ready")
    assert (running.status.judges.desired, running.status.judges.ready) == (3, 3)
    assert (running.status.gpus.rollout, running.status.gpus.trainer, running.status.gpus.judge) == (2, 0, 9)
    assert running.plan().actions == ()
    running.change("demo-judge-2", ready=False)
    running.step()
    assert running.condition("Ready") == ("False", "PodsNotReady", "6 of 7 pods are ready; not ready: demo-judge-2")


def test_the_index_of_a_judge_pod_says_whom_it_serves(running: Cluster) -> None:
    labels = {name: running.manifests["Pod", name]["metadata"]["labels"] for name in ALL_PODS if "judge" in name}
    assert {name: own["longshore.dev/reward"] for name, own in labels.items()} == {
        "demo-judge-0": "critic",
        "demo-judge-1": "critic",
        "demo-judge-2": "stylist",
    }
    served = [running.job.spec.reward.judge_pod(index) for index in range(3)]
    assert [(function.name, replica) for function, replica in served] == [("critic", 0), ("critic", 1), ("stylist", 0)]


def test_a_judge_pod_serves_on_its_gpus_and_takes_no_part_in_ray() -> None:
    pod = judge_pod(make_job(**judged(resources={"memory": "64Gi"})), CONFIG, 3, 1, "10.0.0.9")
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["python", "-m", "longshore_runtime", "judge"]
    assert container["resources"] == {
        "requests": {"cpu": "1", "memory": "64Gi", "amd.com/gpu": "4"},
        "limits": {"amd.com/gpu": "4", "memory": "64Gi"},
    }
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": contract.JUDGE_PORT}
    assert [port["containerPort"] for port in container["ports"]] == [contract.JUDGE_PORT]
    env = environment(pod)
    assert (env[contract.ENV_COMPONENT], env[contract.ENV_INDEX], env[contract.ENV_ATTEMPT]) == ("judge", "1", "3")
    assert contract.ENV_RAY_TOKEN_PATH not in env
    assert "ray-token" not in volumes(pod)


def test_the_judges_have_a_token_of_their_own(running: Cluster) -> None:
    data = running.manifests["Secret", "demo-ray-token-job-uid"]["data"]
    assert {key: base64.b64decode(value).decode() for key, value in data.items()} == {
        contract.RAY_TOKEN_KEY: "t0ken",
        contract.JUDGE_TOKEN_KEY: "0ther",
    }


def test_their_token_reaches_judges_and_those_that_score_alone() -> None:
    job = make_job(**judged())
    key = contract.JUDGE_TOKEN_KEY
    judge = judge_pod(job, CONFIG, 1, 0, "10.0.0.9")
    secret = volumes(judge)["judge-token"]["secret"]
    assert (secret["secretName"], secret["items"]) == ("demo-ray-token-job-uid", [{"key": key, "path": key}])
    assert environment(judge)[contract.ENV_JUDGE_TOKEN] == f"{contract.JUDGE_TOKEN_MOUNT}/{key}"
    scoring = volumes(reward_pod(job, CONFIG, 1, 0, "10.0.0.9"))["reward-tokens"]["projected"]["sources"]
    assert scoring == [
        {"secret": {"name": "demo-ray-token-job-uid", "items": [{"key": key, "path": name}]}}
        for name in ("critic", "stylist")
    ]
    for other in (coordinator_pod(job, CONFIG, 1), worker_pod(job, CONFIG, 1, 0, "10.0.0.9", 1)):
        assert "reward-tokens" not in volumes(other)
        assert key not in str(other)
    lone = make_job(**judged(reward_pods=0))
    assert "reward-tokens" in volumes(coordinator_pod(lone, CONFIG, 1))


def test_a_model_that_cannot_be_served_ends_the_job(running: Cluster) -> None:
    sentence = "reward.functions[critic].judge.modelPath: 'a' is no Hugging Face checkpoint"
    running.exit("demo-judge-0", ExitCode.USER_ERROR, sentence)
    running.reconcile_until_stable()
    assert running.condition("Failed") == ("True", "UserError", sentence)


def test_a_pool_that_changes_is_a_new_attempt(running: Cluster) -> None:
    running.spec, running.generation = judged(replicas=1), 4
    running.reconcile_until_stable()
    assert running.status.attempt == 2
    assert len([pod for pod in running.pods.values() if pod.component is Component.JUDGE]) == 2
    assert running.status.gpus.judge == 5
