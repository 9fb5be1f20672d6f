"""Labels of pods that people and policies of a platform edit: the pods stay with their job, the labels come back."""

from pathlib import Path
from typing import Any

import pytest

from longshore_operator.kube import KubeClient
from tests.contract.operator.harness import Jobs, eventually, job_spec
from tests.contract.operator.no_nodes import JOB, api_server, create_job
from tests.contract.operator.test_controller import CountingKube, Operator
from tests.unit.operator.model import SPEC

POD = "demo-coordinator"
JOB_LABEL, ATTEMPT_LABEL = "longshore.dev/job", "longshore.dev/attempt"


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("pod", [POD, pytest.param("demo-worker-0", marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "labels",
    [
        {JOB_LABEL: None},
        {JOB_LABEL: "other"},
        {"app.kubernetes.io/managed-by": "platform"},
        {ATTEMPT_LABEL: "abc", "longshore.dev/index": "70000"},
    ],
    ids=["hidden", "of-another-job", "managed-by", "no-numbers"],
)
def test_labels_that_are_edited_while_a_job_runs_come_back(jobs: Jobs, pod: str, labels: dict[str, Any]) -> None:
    jobs.create(**job_spec(replicas=1))
    jobs.wait_phase("Running")
    core, before = jobs.cluster.core, jobs.pods()
    core.patch_namespaced_pod(pod, jobs.namespace, {"metadata": {"labels": labels}})

    def are_restored() -> bool:
        return bool(core.read_namespaced_pod(pod, jobs.namespace).metadata.labels == before[pod].metadata.labels)

    eventually("the labels are restored", are_restored)
    status = jobs.wait_phase("Running")
    assert status["attempt"] == 1
    assert {name: found.metadata.uid for name, found in jobs.pods().items()} == {
        name: found.metadata.uid for name, found in before.items()
    }


async def relabel(kube: KubeClient, name: str, **labels: str | None) -> None:
    change = {"metadata": {"labels": {JOB_LABEL: None, **labels}}}
    assert await kube.merge("Pod", JOB[0], name, change) is not None


async def test_a_coordinator_that_lost_its_label_while_the_operator_was_down_is_found(tmp_path: Path) -> None:
    async with api_server(tmp_path) as access, CountingKube(access) as kube:
        await create_job(kube, SPEC)
        await Operator(kube).look()
        await relabel(kube, POD)
        restarted = Operator(kube)
        await restarted.look()
        (found,) = restarted.controller.informer.pods(JOB)
        assert (found.name, found.attempt, found.wrong_labels) == (POD, 1, ())
        job = await kube.get("RLJob", *JOB)
        assert job is not None
        assert job["status"]["attempt"] == 1


async def test_no_attempt_begins_beside_a_pod_of_an_earlier_one_that_lost_its_label(tmp_path: Path) -> None:
    async with api_server(tmp_path) as access, CountingKube(access) as kube:
        await create_job(kube, SPEC)
        first = Operator(kube)
        await first.look()
        await first.pod_status({"phase": "Running", "podIP": "10.0.0.1"}, "node-0")
        await first.look()
        worker = await kube.get("Pod", JOB[0], "demo-worker-0")
        assert worker is not None
        # A pod that takes its time to end.
        assert await kube.merge("Pod", JOB[0], "demo-worker-0", {"metadata": {"finalizers": ["example.org/held"]}})
        await relabel(kube, "demo-worker-0")
        coordinator = await kube.get("Pod", JOB[0], POD)
        assert coordinator is not None
        await kube.delete("Pod", JOB[0], POD, coordinator["metadata"]["uid"])
        restarted = Operator(kube)
        for _ in range(4):
            await restarted.look()
        assert await kube.get("Pod", JOB[0], POD) is None, "attempt 2 waits"
        held = await kube.get("Pod", JOB[0], "demo-worker-0")
        assert held is not None
        assert "deletionTimestamp" in held["metadata"]
        job = await kube.get("RLJob", *JOB)
        assert job is not None
        ready = next(one for one in job["status"]["conditions"] if one["type"] == "Ready")
        assert (job["status"]["attempt"], "demo-worker-0" in ready["message"]) == (2, True)


async def test_a_pod_that_lost_its_label_is_read_until_it_is_gone(tmp_path: Path) -> None:
    async with api_server(tmp_path) as access, CountingKube(access) as kube:
        await create_job(kube, SPEC)
        operator = Operator(kube)
        await operator.look()
        found = await kube.get("Pod", *(JOB[0], POD))
        assert found is not None
        await relabel(kube, POD)
        operator.controller.informer.mark_found(await kube.get("Pod", JOB[0], POD) or {})
        assert ("PATCH", "pods") in await operator.look()
        await kube.delete("Pod", JOB[0], POD, found["metadata"]["uid"])
        operator.controller.informer.take("DELETED", operator.controller.informer.pods(JOB)[0])
        await operator.look()
        assert [pod.uid for pod in operator.controller.informer.pods(JOB)] != [found["metadata"]["uid"]]
