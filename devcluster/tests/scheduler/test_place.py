"""Where a pod may go, and what is said when it may go nowhere."""

from typing import Any

import pytest
from devcluster.tests.builders import Json, node, pod

from longshore_devcluster.scheduler import Placement, Unschedulable, node_states, place
from longshore_devcluster.scheduler.place import by_priority, claim_refusal

GPU = "example.com/gpu"


def decide(wanted: Json, nodes: list[Json], bound: list[Json] | None = None) -> Placement | Unschedulable:
    return place(wanted, node_states(nodes, bound or []))


def message(decision: Placement | Unschedulable) -> str:
    assert isinstance(decision, Unschedulable)
    return decision.message


def test_pod_goes_where_its_extended_resource_is() -> None:
    nodes = [node("plain"), node("with-gpus", gpu="4")]

    assert decide(pod(limits={GPU: "2"}), nodes) == Placement("with-gpus")


def test_gpus_of_running_pods_are_taken_and_those_of_ended_pods_are_free() -> None:
    running = pod("a", nodeName="n", limits={GPU: "3"}, status={"phase": "Running"})
    ended = pod("b", nodeName="n", limits={GPU: "4"}, status={"phase": "Succeeded"})
    nodes = [node("n", gpu="4")]

    assert decide(pod(limits={GPU: "1"}), nodes, [running, ended]) == Placement("n")
    assert message(decide(pod(limits={GPU: "2"}), nodes, [running, ended])) == (
        f"0/1 nodes are available: 1 Insufficient {GPU}."
    )


def test_quantities_are_compared_exactly() -> None:
    nodes = [node("n", cpu="1")]
    thirds = [pod(str(i), nodeName="n", requests={"cpu": "333m"}) for i in range(3)]

    assert decide(pod(requests={"cpu": "1m"}), nodes, thirds) == Placement("n")
    assert isinstance(decide(pod(requests={"cpu": "0.0011"}), nodes, thirds), Unschedulable)


def test_number_of_pods_is_limited() -> None:
    nodes = [node("n", pods="1")]

    assert message(decide(pod("b"), nodes, [pod("a", nodeName="n")])) == ("0/1 nodes are available: 1 Too many pods.")


def test_message_counts_nodes_by_reason() -> None:
    tainted = node("t", gpu="8")
    tainted["spec"]["taints"] = [{"key": "maintenance", "effect": "NoSchedule"}]
    cordoned = node("c", gpu="8")
    cordoned["spec"]["unschedulable"] = True

    refusal = message(decide(pod(limits={GPU: "2"}), [node("a"), node("b"), tainted, cordoned]))

    assert refusal.startswith("0/4 nodes are available: ")
    assert set(refusal.removeprefix("0/4 nodes are available: ").rstrip(".").split(", ")) == {
        f"2 Insufficient {GPU}",
        "1 node(s) had untolerated taint(s)",
        "1 node(s) were unschedulable",
    }


def test_without_nodes_nothing_can_be_scheduled() -> None:
    assert message(decide(pod(), [])) == "no nodes available to schedule pods"


def test_init_containers_count_by_their_peak_and_sidecars_by_their_sum() -> None:
    init = [
        {"name": "big", "resources": {"requests": {"cpu": "3"}}},
        {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
    ]

    assert decide(pod(initContainers=init, requests={"cpu": "2"}), [node(cpu="3")]) == Placement("n")
    assert isinstance(decide(pod(initContainers=init, requests={"cpu": "2500m"}), [node(cpu="3")]), Unschedulable)


def test_least_occupied_node_is_chosen_and_ties_go_to_the_name() -> None:
    nodes = [node("b", gpu="4"), node("a", gpu="4")]

    assert decide(pod(limits={GPU: "1"}), nodes) == Placement("a")
    assert decide(pod(limits={GPU: "1"}), nodes, [pod("x", nodeName="a", limits={GPU: "1"})]) == Placement("b")


def term(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("terms", "chosen"),
    [
        ([term("zone", "In", "x", "y")], "y"),
        ([term("zone", "NotIn", "y")], "none"),
        ([term("zone", "Exists")], "y"),
        ([term("zone", "DoesNotExist")], "none"),
        ([term("gpus", "Gt", "7")], "y"),
        ([term("gpus", "Lt", "3")], "none"),
        ([term("zone", "In", "nowhere"), term("gpus", "Lt", "3")], "none"),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["y"]}]}], "y"),
    ],
)
def test_required_node_affinity_needs_one_of_its_terms(terms: list[Json], chosen: str) -> None:
    nodes = [node("none", labels={"gpus": "2"}), node("y", labels={"zone": "y", "gpus": "8"})]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}

    assert decide(pod(affinity={"nodeAffinity": required}), nodes) == Placement(chosen)


def test_node_selector_needs_every_label() -> None:
    nodes = [node("half", labels={"a": "1"}), node("full", labels={"a": "1", "b": "2"})]

    assert decide(pod(nodeSelector={"a": "1", "b": "2"}), nodes) == Placement("full")


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Exists"}, True),
    ],
)
def test_taints_need_a_toleration(toleration: Json, tolerated: bool) -> None:
    tainted = node()
    tainted["spec"]["taints"] = [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]

    assert isinstance(decide(pod(tolerations=[toleration]), [tainted]), Placement) is tolerated


def test_preferred_taints_do_not_keep_pods_away() -> None:
    tainted = node()
    tainted["spec"]["taints"] = [{"key": "slow", "effect": "PreferNoSchedule"}]

    assert decide(pod(), [tainted]) == Placement("n")


def affinity(kind: str, **labels: str) -> Json:
    required = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [required]}}


def test_pod_anti_affinity_keeps_pods_apart() -> None:
    first = pod("first", nodeName="a", labels={"app": "x"})
    apart = pod("second", labels={"app": "x"}, affinity=affinity("podAntiAffinity", app="x"))

    assert decide(apart, [node("a"), node("b")], [first]) == Placement("b")
    assert "anti-affinity" in message(decide(apart, [node("a")], [first]))


def test_pod_affinity_brings_pods_together() -> None:
    first = pod("first", nodeName="b", labels={"app": "x"})
    together = pod("second", affinity=affinity("podAffinity", app="x"))

    assert decide(together, [node("a"), node("b")], [first]) == Placement("b")
    assert isinstance(decide(together, [node("a")], []), Unschedulable)


def test_first_pod_of_a_group_that_wants_itself_goes_anywhere() -> None:
    self_attracted = pod(labels={"app": "x"}, affinity=affinity("podAffinity", app="x"))

    assert decide(self_attracted, [node("a")]) == Placement("a")


def test_higher_priority_comes_first_then_the_older() -> None:
    def aged(name: str, created: str, priority: int = 0) -> Json:
        entry = pod(name, priority=priority)
        entry["metadata"]["creationTimestamp"] = created
        return entry

    pods = [
        aged("young", "2030-01-02T00:00:00Z"),
        aged("old", "2030-01-01T00:00:00Z"),
        aged("high", "2030-01-03T00:00:00Z", 5),
    ]

    assert [entry["metadata"]["name"] for entry in by_priority(pods)] == ["high", "old", "young"]


@pytest.mark.parametrize(
    ("claim", "refusal"),
    [
        (None, 'persistentvolumeclaim "data" not found'),
        ({"metadata": {}, "status": {"phase": "Pending"}}, "pod has unbound immediate PersistentVolumeClaims"),
        ({"metadata": {}, "status": {"phase": "Bound"}}, None),
    ],
)
def test_pods_wait_for_their_claims(claim: Any, refusal: str | None) -> None:
    wanting = pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])

    assert claim_refusal(wanting, {"data": claim}) == refusal
