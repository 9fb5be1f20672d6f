"""A ReplicaSet keeps its number of pods."""

from devcluster.tests.builders import Json, pod

from longshore_devcluster.controllers.replicas import plan_replicas, pod_of

NOW_S = 1_900_000_000.0


def replica_set(replicas: int, **spec: object) -> Json:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": []}}
    return {
        "metadata": {"name": "rs", "namespace": "default", "uid": "u", "generation": 4},
        "spec": {"replicas": replicas, "template": template, **spec},
    }


def member(name: str, phase: str = "Running", ready: bool = True, **fields: object) -> Json:
    condition = {
        "type": "Ready",
        "status": "True" if ready else "False",
        "lastTransitionTime": "2030-03-17T17:46:30Z",
    }
    return pod(name, nodeName="n", status={"phase": phase, "conditions": [condition]}, **fields)


def test_missing_pods_are_created() -> None:
    assert plan_replicas(replica_set(3), [member("a")], NOW_S).num_create == 2


def test_ended_and_deleted_pods_are_replaced() -> None:
    pods = [member("a", "Failed"), member("b", "Succeeded"), member("c", deletionTimestamp="2030-01-01T00:00:00Z")]

    assert plan_replicas(replica_set(1), pods, NOW_S).num_create == 1


def test_surplus_goes_unbound_then_pending_then_unready_then_youngest_first() -> None:
    def aged(entry: Json, created: str) -> Json:
        entry["metadata"]["creationTimestamp"] = created
        return entry

    unbound = pod("unbound")
    pods = [
        aged(member("old"), "2030-01-01T00:00:00Z"),
        aged(member("young"), "2030-01-02T00:00:00Z"),
        aged(member("unready", ready=False), "2030-01-01T00:00:00Z"),
        aged(member("pending", "Pending", ready=False), "2030-01-01T00:00:00Z"),
        aged(unbound, "2030-01-01T00:00:00Z"),
    ]

    plan = plan_replicas(replica_set(1), pods, NOW_S)

    assert [entry["metadata"]["name"] for entry in plan.delete] == ["unbound", "pending", "unready", "young"]


def test_replica_set_that_is_being_deleted_creates_nothing() -> None:
    going = replica_set(3)
    going["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"

    assert plan_replicas(going, [], NOW_S).num_create == 0


def test_pods_count_as_available_only_after_min_ready_seconds() -> None:
    ready_s = 1_900_000_000 - 10  # 17:46:30, ten seconds before NOW_S
    assert plan_replicas(replica_set(1), [member("a")], NOW_S).status["availableReplicas"] == 1

    waiting = plan_replicas(replica_set(1, minReadySeconds=30), [member("a")], NOW_S)

    assert waiting.status["readyReplicas"] == 1
    assert waiting.status["availableReplicas"] == 0
    assert waiting.look_again_s == ready_s + 30


def test_new_pods_belong_to_the_replica_set() -> None:
    created = pod_of(replica_set(1))

    assert created["metadata"]["generateName"] == "rs-"
    assert created["metadata"]["labels"] == {"app": "x"}
    assert created["metadata"]["ownerReferences"][0]["uid"] == "u"
