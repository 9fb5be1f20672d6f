"""Pods wait for room and say what they wait for."""

from typing import Any

from tests.contract.kube_nodes.kube import Json, Kubectl

GPU = "longshore.dev/pretend-gpu"


def scheduled(pod: Json) -> Json:
    found = next(entry for entry in pod["status"]["conditions"] if entry["type"] == "PodScheduled")
    assert isinstance(found, dict)
    return found


def gpu_pod(kubectl: Kubectl, name: str, num_gpus: int, **fields: Any) -> Json:
    return kubectl.pod(name, "sleep 1000", c_resources={"limits": {GPU: str(num_gpus)}}, **fields)


def wait_unschedulable(kubectl: Kubectl, name: str) -> Json:
    kubectl("wait", f"pod/{name}", "--for=condition=PodScheduled=False", "--timeout=60s")
    return scheduled(kubectl.get(f"pod/{name}"))


def test_pod_that_asks_for_too_much_stays_pending_and_says_why(kubectl: Kubectl) -> None:
    resources = {"limits": {"example.com/absent": "1"}}
    kubectl.apply(kubectl.pod("p", "sleep 1", c_resources=resources))

    condition = wait_unschedulable(kubectl, "p")

    assert condition["reason"] == "Unschedulable"
    assert "nodes are available" in condition["message"]
    assert "Insufficient example.com/absent" in condition["message"]
    assert kubectl.get("pod/p")["status"]["phase"] == "Pending"
    assert "Insufficient example.com/absent" in kubectl.events("p")["FailedScheduling"]


def test_node_selector_names_the_reason(kubectl: Kubectl) -> None:
    kubectl.apply(kubectl.pod("p", "sleep 1", nodeSelector={"example.com/no-such": "label"}))

    assert "didn't match Pod's node affinity/selector" in wait_unschedulable(kubectl, "p")["message"]


def test_waiting_pod_starts_when_room_comes_free(kubectl: Kubectl, embedded_only: None) -> None:
    kubectl.apply(gpu_pod(kubectl, "a", 4), gpu_pod(kubectl, "b", 3))
    kubectl("wait", "pod/a", "pod/b", "--for=condition=Ready", "--timeout=60s")
    kubectl.apply(gpu_pod(kubectl, "waiting", 2))
    assert f"2 Insufficient {GPU}" in wait_unschedulable(kubectl, "waiting")["message"]

    kubectl("delete", "pod", "a", "--now")

    assert scheduled(kubectl.wait_ready("pod/waiting"))["status"] == "True"


def test_pods_of_one_job_spread_by_what_is_free(kubectl: Kubectl, embedded_only: None) -> None:
    # Pods of the tests before may hold GPUs until they have ended; it is an error if there are none.
    kubectl.attempt("wait", "pods", "--all", "--all-namespaces", "--for=delete", "--timeout=90s")
    kubectl.apply(gpu_pod(kubectl, "a", 2), gpu_pod(kubectl, "b", 2))
    kubectl("wait", "pod/a", "pod/b", "--for=condition=Ready", "--timeout=60s")

    assert {kubectl.get(f"pod/{name}")["spec"]["nodeName"] for name in "ab"} == {"dev-0", "dev-1"}


def test_cordoned_node_takes_no_pods(kubectl: Kubectl, embedded_only: None) -> None:
    kubectl("cordon", "dev-0")
    try:
        kubectl.apply(kubectl.pod("p", "sleep 1000"))
        assert kubectl.wait_ready("pod/p")["spec"]["nodeName"] == "dev-1"
    finally:
        kubectl("uncordon", "dev-0")


def test_nodes_are_ready_and_offer_their_resources(kubectl: Kubectl, embedded_only: None) -> None:
    node = kubectl.wait_ready("node/dev-0")

    assert node["status"]["allocatable"][GPU] == "4"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "dev-0"
    assert (
        kubectl("get", "lease", "dev-0", "--namespace=kube-node-lease", "-o", "jsonpath={.spec.holderIdentity}")
        == "dev-0"
    )
