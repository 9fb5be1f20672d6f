"""A Deployment reaches its template within its limits."""

import copy
from typing import Any

from devcluster.tests.builders import Json
from hypothesis import given
from hypothesis import strategies as st

from longshore_devcluster.controllers.deployment_status import deployment_report
from longshore_devcluster.controllers.rollout import (
    HASH_LABEL,
    REVISION,
    RolloutPlan,
    plan_rollout,
    revision_of,
    surge_and_unavailable,
)

NOW_S = 1_900_000_000.0


def deployment(replicas: int = 3, image: str = "v1", **spec: Any) -> Json:
    return {
        "metadata": {"name": "web", "namespace": "default", "uid": "d", "generation": 1},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": image}]},
            },
            **spec,
        },
    }


class World:
    """ReplicaSets that do at once what they are asked, though their pods become available only on request."""

    def __init__(self) -> None:
        self.replica_sets: dict[str, Json] = {}

    def step(self, wanted: Json) -> RolloutPlan:
        """Carry one plan out."""
        plan = plan_rollout(wanted, copy.deepcopy(list(self.replica_sets.values())))
        if plan.create is not None:
            created = copy.deepcopy(plan.create)
            created["metadata"]["uid"] = created["metadata"]["name"]
            created["metadata"]["creationTimestamp"] = f"2030-01-01T00:00:{len(self.replica_sets):02d}Z"
            created["status"] = {"replicas": 0, "availableReplicas": 0}
            self.replica_sets[created["metadata"]["uid"]] = created
        for replica_set, replicas in plan.scale:
            self.replica_sets[replica_set["metadata"]["uid"]]["spec"]["replicas"] = replicas
        if plan.revise is not None:
            replica_set, revision = plan.revise
            self.replica_sets[replica_set["metadata"]["uid"]]["metadata"]["annotations"][REVISION] = str(revision)
        for replica_set in plan.delete:
            del self.replica_sets[replica_set["metadata"]["uid"]]
        for entry in self.replica_sets.values():
            status = entry["status"]
            status["replicas"] = entry["spec"]["replicas"]
            status["availableReplicas"] = min(status["availableReplicas"], status["replicas"])
        return plan

    def make_available(self, uid: str, most: int = 1) -> None:
        """Let some pods of a ReplicaSet become available."""
        entry = self.replica_sets[uid]
        missing = entry["status"]["replicas"] - entry["status"]["availableReplicas"]
        entry["status"]["availableReplicas"] += min(most, missing)

    def settle(self, wanted: Json) -> None:
        """Go on until nothing is left to do, every pod becoming available."""
        for _ in range(100):
            self.step(wanted)
            for uid in self.replica_sets:
                self.make_available(uid, 100)
        assert self.total == self.available == wanted["spec"]["replicas"]

    @property
    def total(self) -> int:
        return sum(entry["spec"]["replicas"] for entry in self.replica_sets.values())

    @property
    def available(self) -> int:
        return sum(entry["status"]["availableReplicas"] for entry in self.replica_sets.values())

    def replicas(self) -> dict[str, int]:
        """Replicas by image."""
        return {
            entry["spec"]["template"]["spec"]["containers"][0]["image"]: entry["spec"]["replicas"]
            for entry in self.replica_sets.values()
        }


def test_first_replica_set_carries_hash_owner_and_revision() -> None:
    plan = plan_rollout(deployment(), [])

    assert plan.create is not None
    digest = plan.create["metadata"]["labels"][HASH_LABEL]
    assert plan.create["metadata"]["name"] == f"web-{digest}"
    assert plan.create["spec"]["selector"]["matchLabels"] == {"app": "web", HASH_LABEL: digest}
    assert plan.create["spec"]["template"]["metadata"]["labels"][HASH_LABEL] == digest
    assert plan.create["spec"]["replicas"] == 3
    assert revision_of(plan.create) == 1
    assert plan.create["metadata"]["ownerReferences"][0]["controller"]


def test_percentages_of_surge_round_up_and_of_unavailability_down() -> None:
    limits = {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}

    assert surge_and_unavailable(deployment(5, strategy=limits)) == (2, 1)
    assert surge_and_unavailable(deployment(1, strategy=limits)) == (1, 0)


def test_rollout_can_always_move() -> None:
    limits = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}

    assert surge_and_unavailable(deployment(3, strategy=limits)) == (0, 1)


@given(
    replicas=st.integers(0, 8),
    surge=st.integers(0, 3),
    unavailable=st.integers(0, 3),
    choices=st.lists(st.integers(0, 5), max_size=60),
)
def test_rolling_update_keeps_its_limits_and_arrives(
    replicas: int, surge: int, unavailable: int, choices: list[int]
) -> None:
    strategy = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    world = World()
    world.settle(deployment(replicas, "v1", strategy=strategy))
    wanted = deployment(replicas, "v2", strategy=strategy)
    surge, unavailable = surge_and_unavailable(wanted)

    for choice in choices:
        world.step(wanted)
        assert world.total <= replicas + surge
        assert world.available >= replicas - unavailable
        uids = sorted(world.replica_sets)
        world.make_available(uids[choice % len(uids)])
    world.settle(wanted)

    assert world.replicas() == {"v1": 0, "v2": replicas}


def test_recreate_starts_the_new_pods_only_after_the_old_ones() -> None:
    world = World()
    world.settle(deployment(2, "v1", strategy={"type": "Recreate"}))
    wanted = deployment(2, "v2", strategy={"type": "Recreate"})

    world.step(wanted)
    assert world.replicas() == {"v1": 0}
    world.step(wanted)
    assert world.replicas() == {"v1": 0, "v2": 2}


def test_going_back_to_an_earlier_template_reuses_its_replica_set_under_a_new_revision() -> None:
    world = World()
    for image in ("v1", "v2", "v1"):
        world.settle(deployment(2, image))

    assert world.replicas() == {"v1": 2, "v2": 0}
    assert sorted(revision_of(entry) for entry in world.replica_sets.values()) == [2, 3]


def test_paused_deployment_scales_but_does_not_roll() -> None:
    world = World()
    world.settle(deployment(2, "v1"))

    world.step(deployment(4, "v2", paused=True))

    assert world.replicas() == {"v1": 4}


def test_old_replica_sets_beyond_the_history_limit_are_deleted_oldest_first() -> None:
    world = World()
    for image in ("v1", "v2", "v3", "v4"):
        world.settle(deployment(1, image, revisionHistoryLimit=1))

    assert world.replicas() == {"v3": 0, "v4": 1}


def reported(wanted: Json, world: World, now_s: float = NOW_S) -> dict[str, Json]:
    owned = list(world.replica_sets.values())
    report = deployment_report(wanted, plan_rollout(wanted, owned).new, owned, now_s)
    wanted["status"] = report.status
    return {entry["type"]: entry for entry in report.status["conditions"]}


def test_status_says_when_the_rollout_is_complete() -> None:
    world, wanted = World(), deployment(2)
    world.step(wanted)

    before = reported(wanted, world)
    world.settle(wanted)
    after = reported(wanted, world, NOW_S + 5)

    assert (before["Available"]["status"], before["Progressing"]["reason"]) == ("False", "NewReplicaSetCreated")
    assert (after["Available"]["status"], after["Progressing"]["reason"]) == ("True", "NewReplicaSetAvailable")
    assert wanted["status"]["updatedReplicas"] == wanted["status"]["availableReplicas"] == 2
    assert wanted["status"]["observedGeneration"] == 1


def test_rollout_without_progress_misses_its_deadline() -> None:
    world, wanted = World(), deployment(2, progressDeadlineSeconds=60)
    world.step(wanted)
    reported(wanted, world)

    assert reported(wanted, world, NOW_S + 59)["Progressing"]["status"] == "True"
    late = reported(wanted, world, NOW_S + 62)["Progressing"]
    assert (late["status"], late["reason"]) == ("False", "ProgressDeadlineExceeded")
    assert reported(wanted, world, NOW_S + 90)["Progressing"]["reason"] == "ProgressDeadlineExceeded"


def test_status_does_not_change_when_nothing_happens() -> None:
    world, wanted = World(), deployment(2)
    world.settle(wanted)
    reported(wanted, world)
    first = wanted["status"]

    reported(wanted, world, NOW_S + 1000)

    assert wanted["status"] == first
