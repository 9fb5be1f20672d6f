"""Jobs that wait in a queue of one cluster and run in another, which MultiKueue chooses: a stand-in, and two operators.

The worker cluster is embedded, with a stand-in for Kueue. The cluster of the queue is that of the other tests.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from longshore_devcluster.cluster import ClusterConfig
from longshore_devcluster.launcher import cluster_process
from tests.contract.operator.conftest import chart_in
from tests.contract.operator.harness import (
    HOLD,
    RELEASE_NAMESPACE,
    SERVICE_ACCOUNT,
    Cluster,
    Jobs,
    eventually,
    job_spec,
)
from tests.contract.operator.kueue import ON_LINUX, TEAM, Kueue, holds, operator_with_kueue
from tests.contract.operator.multikueue import CONTROLLER, FakeMultiKueue

TRAINS = """
trap 'touch "$LONGSHORE_STORAGE/checkpoint"; exit 143' TERM
until [ -e "$LONGSHORE_STORAGE/stop" ]; do sleep 1 & wait $!; done
echo done > "$LONGSHORE_TERMINATION_LOG"
"""
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def operators(
    cluster: Cluster, operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """An operator in each cluster; yields the worker cluster."""
    folder = tmp_path_factory.mktemp("worker")
    with cluster_process(folder / "cluster", ClusterConfig()) as running, chart_in(running.kubeconfig):
        worker = Cluster(running.kubeconfig)
        access = worker.token_kubeconfig(folder / "kubeconfig", RELEASE_NAMESPACE, SERVICE_ACCOUNT)
        with (
            operator_with_kueue(worker, access, folder / "worker.log", is_embedded=True),
            operator_with_kueue(cluster, operator_kubeconfig, folder / "manager.log"),
        ):
            yield worker


@pytest.fixture
def there(jobs: Jobs, cluster: Cluster, operators: Cluster) -> Iterator[Jobs]:
    """The namespace of the jobs in the worker cluster. Both clusters have a queue with two GPUs."""
    name = f"multi-{next(_numbers)}"
    operators.core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=jobs.namespace)))
    here_queue, there_queue = Kueue(cluster, name), Kueue(operators, name)
    here_queue.create_cluster_queue(2, ON_LINUX, check=CONTROLLER)
    here_queue.create_local_queue(jobs.namespace, "team")
    there_queue.create_queue(jobs.namespace, 2, ON_LINUX)
    found = Jobs(operators, jobs.namespace)
    with FakeMultiKueue(cluster, operators, name):
        yield found
        jobs.delete_all()
        eventually("the job is gone there", lambda: found.get() is None)
    here_queue.delete_queue()
    there_queue.delete_queue()


def create(jobs: Jobs, coordinator: str = HOLD) -> None:
    jobs.create(labels=TEAM, **job_spec(coordinator=coordinator), managedBy="kueue.x-k8s.io/multikueue")


def test_a_job_runs_in_the_other_cluster_and_its_status_is_seen_here(jobs: Jobs, there: Jobs) -> None:
    create(jobs, TRAINS)
    assert jobs.wait_phase("Running")["workers"] == {"desired": 2, "ready": 2}
    copy: dict[str, Any] = there.get() or {}
    assert "managedBy" not in copy["spec"]
    workload = Kueue(there.cluster, "").workload(jobs.namespace, "demo")
    assert [one["uid"] for one in workload["metadata"]["ownerReferences"]] == [copy["metadata"]["uid"]]
    queue = Kueue(jobs.cluster, "")
    eventually("PodsReady here", lambda: holds(queue.workload(jobs.namespace, "demo"), "PodsReady"))
    assert jobs.pods() == {}
    there.execute("demo-coordinator", 'touch "$LONGSHORE_STORAGE/stop"')
    assert jobs.wait_phase("Succeeded")["conditions"] == there.status().get("conditions", [])
    eventually("the quota is free", lambda: holds(queue.workload(jobs.namespace, "demo"), "Finished"))


def test_a_suspension_stops_the_job_there_and_it_can_be_resumed(jobs: Jobs, there: Jobs) -> None:
    create(jobs)
    jobs.wait_phase("Running")
    first = (there.get() or {})["metadata"]["uid"]
    jobs.patch({"suspend": True})
    jobs.wait_phase("Suspended")
    assert "startTime" not in jobs.status()
    eventually("nothing is left there", lambda: there.get() is None and not there.pods())
    assert not holds(Kueue(jobs.cluster, "").workload(jobs.namespace, "demo"), "QuotaReserved")
    jobs.patch({"suspend": False})
    jobs.wait_phase("Running")
    assert (there.get() or {})["metadata"]["uid"] != first


def test_a_job_without_a_queue_starts_nowhere(jobs: Jobs, there: Jobs) -> None:
    jobs.create(**job_spec(), managedBy="kueue.x-k8s.io/multikueue")
    jobs.wait_reported("demo", "QueueUnavailable", "name its queue by kueue.x-k8s.io/queue-name")
    assert jobs.pods() == {}


def test_who_manages_a_job_cannot_change(jobs: Jobs) -> None:
    jobs.create()
    with pytest.raises(client.ApiException, match="managedBy is immutable: create a new RLJob"):
        jobs.patch({"managedBy": "kueue.x-k8s.io/multikueue"})
    jobs.patch({"managedBy": "longshore.dev/operator"})
