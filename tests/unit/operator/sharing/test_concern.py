"""What the operator does with a job that shares GPUs: its pods, its status, and the end of a turn that is overdue."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.api.reasons import AdmittedReason
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.sharing import RuntimeSharing, SharingStatus
from longshore.api.status import Phase
from longshore_operator.admission.config import AdmissionConfig
from longshore_operator.admission.desk import AdmissionDesk
from longshore_operator.observed import Standing
from longshore_operator.plan import DeletePod, Plan
from longshore_operator.sharing.placement import sharing_worker
from longshore_operator.sharing.view import SharingView
from tests.unit.operator.model import Cluster, make_job, running_cluster

SPEC: dict[str, Any] = {
    "sharing": {"group": "night"},
    "workers": {
        "replicas": 2,
        "gpusPerPod": 1,
        "gpuResourceName": "nvidia.com/gpu.shared",
        "resources": {"memory": "64Gi"},
    },
}
TURNS = SharingStatus(attempt=1, granted=2, recalled=1)


def running() -> Cluster:
    return running_cluster(**SPEC)


def seen(cluster: Cluster, **found: Any) -> Plan:
    plan = cluster.plan(sharing=SharingView("night", **found))
    cluster.apply(plan)
    return plan


def test_the_coordinator_reads_its_turns_in_the_status() -> None:
    cluster = running()
    seen(cluster, turns=TURNS)
    assert cluster.status.sharing == TURNS
    assert cluster.condition("Sharing")[:2] == ("True", "Member")


def test_turns_of_an_attempt_that_is_over_are_not_in_the_status() -> None:
    cluster = running()
    cluster.exit("demo-coordinator", 1)
    seen(cluster, turns=TURNS)
    assert (cluster.status.attempt, cluster.status.sharing) == (2, None)


def test_a_job_on_trial_says_so() -> None:
    cluster = running()
    seen(cluster, turns=TURNS, is_on_trial=True)
    assert cluster.condition("Sharing")[:2] == ("True", "OnTrial")


def test_a_member_that_becomes_slower_than_its_limit_says_so_and_stays() -> None:
    cluster = running()

    def measured(num_steps: int, wait_s: float) -> tuple[str, ...]:
        report = RuntimeSharing(asked=2, returned=1, num_steps=num_steps, step_s=10.0, wait_s=wait_s)
        cluster.status = cluster.status.model_copy(update={"runtime": RuntimeStatus(attempt=1, sharing=report)})
        seen(cluster, turns=TURNS)
        return cluster.condition("Sharing")[:2]

    slow = ("True", "SlowerThanAllowed")
    assert measured(2, 6.0) == ("True", "Member"), "the first steps say little"
    assert measured(3, 5.0) == ("True", "Member"), "exactly its limit of 1.5"
    assert [measured(4, 5.5), measured(5, 6.0)] == [slow, slow]
    assert [event.reason for event in cluster.events].count("SlowerThanAllowed") == 1
    assert cluster.status.phase is Phase.RUNNING
    assert measured(6, 4.0) == ("True", "Member")


def test_a_job_that_cannot_join_stops_and_says_why() -> None:
    cluster = running()
    for _ in range(3):
        seen(cluster, refusal="a step of other could take more than 1.5 times as long as alone")
        cluster.kubelet()
    assert (cluster.status.phase, cluster.pods) == (Phase.QUEUED, {})
    for kind in ("Sharing", "Admitted"):
        status, reason, message = cluster.condition(kind)
        assert (status, reason) == ("False", AdmittedReason.SHARING_REFUSED)
        assert message.startswith("a step of other could take more")
    cluster.reconcile_until_stable()
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 2)


def test_a_job_that_cannot_join_holds_its_gpus_until_its_pods_are_gone() -> None:
    """Also for an operator that starts, which knows only what the status says."""
    gpus = {"nvidia.com/gpu.shared": 2}
    cluster = running()
    admitted = Standing(True, AdmittedReason.ADMITTED, "", gpus)
    cluster.apply(cluster.plan(standing=admitted))
    seen(cluster, refusal="a step of other could take more than 1.5 times as long as alone")
    pods = tuple(cluster.pods.values())
    assert pods
    assert cluster.status.admission is not None
    assert (cluster.status.admission.admitted, cluster.status.admission.gpus) == (False, gpus)
    config = AdmissionConfig(capacity=gpus)
    desk = AdmissionDesk(config, lambda _: None)
    desk.stop(("team", "demo"), cluster.job, pods, cluster.now)
    assert desk._ledger is not None
    assert [dict(one.gpus) for one in desk._ledger._requests.values()] == [gpus]
    desk.stop(("team", "demo"), cluster.job, (), cluster.now)
    assert not desk._ledger._requests


def test_members_are_shown_what_their_group_waits_for() -> None:
    cluster = running()
    seen(cluster, turns=TURNS, waits_for="no turn is granted, since pod x is of no member")
    assert cluster.condition("Sharing") == (
        "True",
        "Member",
        "the job takes turns in sharing group night; no turn is granted, since pod x is of no member",
    )


def test_a_group_that_cannot_be_read_stops_no_job_that_runs() -> None:
    cluster = running()
    seen(cluster, turns=TURNS, mistake="ConfigMap x does not hold a sharing group: delete it")
    assert cluster.status.phase is Phase.RUNNING
    assert cluster.status.sharing == TURNS
    assert cluster.condition("Sharing") == (
        "False", "SharingRefused", "ConfigMap x does not hold a sharing group: delete it"
    )  # fmt: skip


def test_an_overdue_turn_ends_the_attempt_and_not_before() -> None:
    cluster = running()
    at = cluster.now + timedelta(seconds=30)
    plan = seen(cluster, turns=TURNS, overdue_at=at)
    assert plan.requeue_at == at
    assert not any(isinstance(action, DeletePod) for action in plan.actions)
    cluster.pass_time(31)
    plan = seen(cluster, turns=TURNS, overdue_at=at)
    assert [action.name for action in plan.actions if isinstance(action, DeletePod)] == ["demo-coordinator"]
    assert "TurnOverdue" in [event.reason for event in cluster.events]
    cluster.reconcile_until_stable()
    assert (cluster.status.phase, cluster.status.attempt, cluster.status.failures) == (Phase.RUNNING, 2, 0)


def test_workers_are_on_nodes_with_workers_of_their_group_only_and_one_of_each_job() -> None:
    cluster = running()
    worker = cluster.manifests["Pod", "demo-worker-0"]
    token = worker["metadata"]["labels"]["longshore.dev/sharing"]
    apart = worker["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart == [
        {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {
                "matchExpressions": [
                    {"key": "longshore.dev/sharing", "operator": "Exists"},
                    {"key": "longshore.dev/sharing", "operator": "NotIn", "values": [token]},
                ]
            },
            "namespaceSelector": {},
        },
        {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {
                "matchLabels": {"longshore.dev/job": "demo", "longshore.dev/component": "worker"},
            },
        },
    ]
    assert "longshore.dev/sharing" not in cluster.manifests["Pod", "demo-coordinator"]["metadata"]["labels"]


SHARES = {"nvidia.com/gpu.shared": "1"}


@pytest.mark.parametrize(
    ("component", "spec"),
    [
        ("worker-0", {"workers": SPEC["workers"]}),
        ("coordinator", SPEC | {"coordinator": {"resources": SHARES}}),
        ("reward-0", {"reward": {"pods": 1, "resources": SHARES}}),
        (
            "coordinator",
            {
                "coordinator": {
                    "template": {"spec": {"initContainers": [{"name": "i", "resources": {"limits": SHARES}}]}}
                }
            },
        ),
    ],
)
def test_a_pod_with_shares_that_takes_no_turns_stays_off_nodes_of_members(component: str, spec: dict[str, Any]) -> None:
    cluster = Cluster(spec=spec)
    cluster.reconcile_until_stable()
    pod = cluster.manifests["Pod", f"demo-{component}"]
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchExpressions": [{"key": "longshore.dev/sharing", "operator": "Exists"}]},
        "namespaceSelector": {},
    }
    apart = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart == [term]
    others = [one for (kind, name), one in cluster.manifests.items() if kind == "Pod" and name != f"demo-{component}"]
    others = [one for one in others if "worker" not in one["metadata"]["name"]]
    assert others
    assert not [one for one in others if "podAntiAffinity" in one["spec"].get("affinity", {})]


def test_a_worker_without_gpus_keeps_nobody_from_a_node() -> None:
    job = make_job(**SPEC | {"workers": SPEC["workers"] | {"gpusPerPod": 0}})
    pod = sharing_worker({"metadata": {"labels": {}}, "spec": {"containers": []}}, job)
    assert pod["spec"] == {"containers": []}
    assert "longshore.dev/sharing" not in pod["metadata"]["labels"]
    assert pod["metadata"]["annotations"]["longshore.dev/sharing"]
    by_template = {"resources": {"limits": {"nvidia.com/gpu.shared": 1}}}
    asking = sharing_worker({"metadata": {"labels": {}}, "spec": {"containers": [by_template]}}, job)
    assert asking["spec"]["affinity"]["podAntiAffinity"]


def test_a_template_does_not_undo_it() -> None:
    job = make_job(**SPEC)
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    mine = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"a": "b"}}}
    manifest = {
        "metadata": {"labels": {"longshore.dev/sharing": "another"}},
        "spec": {"affinity": {"podAntiAffinity": {required: [mine]}}},
    }
    pod = sharing_worker(manifest, job)
    assert pod["metadata"]["labels"]["longshore.dev/sharing"] != "another"
    assert [term["topologyKey"] for term in pod["spec"]["affinity"]["podAntiAffinity"][required]] == [
        "rack",
        "kubernetes.io/hostname",
        "kubernetes.io/hostname",
    ]
