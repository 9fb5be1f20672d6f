"""A volume that one node at a time can mount: all pods of the job are on the node of the coordinator."""

from typing import Any

import pytest

from longshore_operator.pods import coordinator_pod, judge_pod, reward_pod, trainer_pod, worker_pod
from tests.unit.operator.model import CONFIG, Cluster, make_job
from tests.unit.operator.test_disaggregated import apart
from tests.unit.operator.test_judge_pools import judged

Pod = dict[str, Any]
ONCE: dict[str, Any] = {"storage": {"create": {"size": "1Gi", "accessMode": "ReadWriteOnce"}}}
MANY = {"storage": {"create": {"size": "1Gi"}}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
COORDINATOR = {"longshore.dev/job": "demo", "longshore.dev/component": "coordinator"}
WITH_THE_COORDINATOR = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": COORDINATOR}}
GPU_NODES = {"pool": "gpu"}
GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
GPU_WORKERS = {"workers": {"nodeSelector": GPU_NODES, "tolerations": [GPU_TAINT]}}


def pods(**spec: Any) -> dict[str, Pod]:
    """One of every kind that the job has, by its component."""
    job = make_job(**spec)
    made = [coordinator_pod(job, CONFIG, 1), worker_pod(job, CONFIG, 1, 0, "10.0.0.9", 1)]
    made += [reward_pod(job, CONFIG, 1, 0, "10.0.0.9")]
    made += [trainer_pod(job, CONFIG, 1, 0, "10.0.0.9")] if job.spec.trainer_workers is not None else []
    made += [judge_pod(job, CONFIG, 1, 0, "10.0.0.9")] if job.spec.reward.num_judge_pods else []
    return {pod["metadata"]["labels"]["longshore.dev/component"]: pod for pod in made}


def required(pod: Pod) -> list[Any]:
    found: list[Any] = pod["spec"].get("affinity", {}).get("podAffinity", {}).get(REQUIRED, [])
    return found


@pytest.mark.parametrize("spec", [{}, apart(), judged()], ids=["rewards", "trainers", "judges"])
def test_all_other_pods_are_on_the_node_of_the_coordinator(spec: dict[str, Any]) -> None:
    coordinator, *others = pods(**ONCE, **spec).values()
    assert "affinity" not in coordinator["spec"]
    assert [required(pod) for pod in others] == [[WITH_THE_COORDINATOR]] * len(others)
    assert COORDINATOR.items() <= coordinator["metadata"]["labels"].items()


@pytest.mark.parametrize("storage", [MANY, {"storage": {"claimName": "shared"}}], ids=["ReadWriteMany", "a claim"])
def test_pods_with_another_volume_are_where_they_ask_to_be(storage: dict[str, Any]) -> None:
    for component, pod in pods(**storage, **GPU_WORKERS).items():
        assert "affinity" not in pod["spec"]
        assert pod["spec"]["nodeSelector"] == (GPU_NODES if component == "worker" else {})
        assert (GPU_TAINT in pod["spec"]["tolerations"]) is (component == "worker")


def test_the_coordinator_chooses_a_node_for_workers() -> None:
    made = pods(**ONCE, **GPU_WORKERS)
    assert made["coordinator"]["spec"]["nodeSelector"] == GPU_NODES
    assert all(GPU_TAINT in pod["spec"]["tolerations"] for pod in made.values())
    assert made["reward"]["spec"]["nodeSelector"] == {}, "it follows the coordinator"


def test_the_coordinator_also_knows_the_nodes_of_a_template() -> None:
    template = {"spec": {"nodeSelector": GPU_NODES, "tolerations": [GPU_TAINT]}}
    spec = pods(**ONCE, workers={"template": template})["coordinator"]["spec"]
    assert spec["nodeSelector"] == GPU_NODES
    assert GPU_TAINT in spec["tolerations"]


def test_a_pod_for_which_the_node_of_the_coordinator_has_no_room_says_what_to_do() -> None:
    cluster = Cluster(spec=ONCE)
    cluster.reconcile_until_stable()
    cluster.change("demo-coordinator", node="cpu-7")
    why = "0/9 nodes are available: 9 node(s) didn't match pod affinity rules."
    cluster.change("demo-worker-0", ready=False, scheduled=False, unschedulable=why, phase="Pending")
    cluster.step()
    message = cluster.condition("Scheduled")[2]
    assert message.startswith(f"demo-worker-0: {why}; its volume is ReadWriteOnce, so all pods must be on cpu-7")
    assert "spec.workers.nodeSelector" in message


def test_a_coordinator_with_a_node_selector_of_its_own_takes_no_nodes_of_workers() -> None:
    own = {"nodeSelector": {"pool": "cpu"}, "tolerations": [{"key": "cpu-only", "operator": "Exists"}]}
    spec = pods(**ONCE, **GPU_WORKERS, coordinator=own)["coordinator"]["spec"]
    assert spec["nodeSelector"] == {"pool": "cpu"}
    assert GPU_TAINT not in spec["tolerations"] and own["tolerations"][0] in spec["tolerations"]


def test_a_topology_is_required_besides_the_node_of_the_coordinator() -> None:
    scheduling = {"topology": {"key": "example.com/rack", "required": True}, "packNodes": True}
    worker = pods(**ONCE, scheduling=scheduling)["worker"]
    rack, node = required(worker)
    assert (rack["topologyKey"], node) == ("example.com/rack", WITH_THE_COORDINATOR)
    [packed] = worker["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert packed["weight"] == 50


def test_a_template_adds_affinity_of_nodes_and_removes_that_of_pods() -> None:
    gpus = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": []}]}}}
    worker = pods(**ONCE, workers={"template": {"spec": {"affinity": gpus}}})["worker"]
    assert required(worker) == [WITH_THE_COORDINATOR] and gpus.items() <= worker["spec"]["affinity"].items()
    free = pods(**ONCE, workers={"template": {"spec": {"affinity": {"podAffinity": None}}}})["worker"]
    assert required(free) == []
