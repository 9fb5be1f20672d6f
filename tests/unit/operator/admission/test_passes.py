"""What passes of the controller tell the admission: which jobs hold GPUs, and from when they do not."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore.api.scheduling import PodGroupKind
from longshore.api.status import AdmissionStatus, Phase, RLJobStatus
from longshore_kube.access import Access
from longshore_kube.errors import ApiError
from longshore_operator.apply import status_fields
from longshore_operator.config import AdmissionConfig, OperatorConfig
from longshore_operator.context import Reads
from longshore_operator.controller import Controller
from longshore_operator.job_memory import JobMemory
from longshore_operator.kube import KubeClient
from longshore_operator.kueue.view import KueueView
from longshore_operator.metrics import OperatorMetrics
from longshore_operator.plan import Plan
from longshore_operator.pod_view import PodView
from longshore_operator.stored_job import read_job
from tests.unit.operator.kueue.workloads import VIEW, assigned
from tests.unit.operator.model import SPEC, START, make_job

GPU = "nvidia.com/gpu"
KEY, OTHER = ("team", "demo"), ("team", "other")
RUNNING = RLJobStatus(attempt=1, phase=Phase.RUNNING, admission=AdmissionStatus(admitted=True, gpus={GPU: 2}))
REFUSED = {"workers": SPEC["workers"] | {"template": {"spec": {"hostNetwork": True}}}}
POD = PodView("demo-worker-0", "team", "u", "demo", Component.WORKER, 0, 1, phase="Running", owner_uid="job-uid")


class Broken(KubeClient):
    """An API server that serves the job and fails with everything else."""

    def __init__(self) -> None:
        super().__init__(Access("http://nowhere"))

    async def get(self, kind: str, namespace: str, name: str, *, metadata_only: bool = False) -> dict[str, Any]:
        if kind == "RLJob":
            return stored(make_job(RUNNING, scheduling={"podGroup": "Volcano"}))
        raise ApiError(500, "InternalError", f"no {kind}")

    async def served_versions(self, group: str) -> tuple[str, ...]:
        raise ApiError(500, "InternalError", group)


@pytest.fixture
async def controller() -> AsyncIterator[Controller]:
    """Controller of a cluster with two GPUs, which knows all jobs."""
    config = OperatorConfig(
        runtime_image="unused",
        pod_groups=frozenset({PodGroupKind.VOLCANO}),
        admission=AdmissionConfig(capacity={GPU: 2}),
    )
    controller = Controller(Broken(), config, OperatorMetrics(), "team", clock=lambda: START)
    await controller._admission.expect(nobody())
    yield controller
    await controller.close()


async def nobody() -> AsyncIterator[list[tuple[str, str]]]:
    for page in ():
        yield page


def stored(job: RLJob) -> dict[str, Any]:
    """As the API server has it."""
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {"metadata": job.metadata | {"resourceVersion": "1"}, "spec": spec, "status": status_fields(job.status)}


def decide(controller: Controller, job: RLJob, kueue: KueueView | None = None) -> Plan:
    return controller._decide(KEY, JobMemory(), read_job(stored(job), START), Reads(kueue=kueue), START)


def is_free(controller: Controller) -> bool:
    """Whether another job gets both GPUs."""
    fleet, other = controller._admission, make_job()
    other.metadata.update(name=OTHER[1], uid="other-uid")
    fleet.report(OTHER, other, (), START)
    fleet._decide(None)  # Without the pause since the last decision.
    fleet.report(OTHER, other, (), START)
    admission = fleet.state(OTHER)
    fleet.withdraw(OTHER, ())
    assert admission is not None
    return admission.admitted


async def test_a_job_that_is_refused_in_the_pass_that_admits_it_leaves_its_gpus(controller: Controller) -> None:
    """Nothing changes any more then, so no other pass would."""
    plan = decide(controller, make_job(**REFUSED))
    assert plan.status is not None and plan.status.phase is Phase.FAILED
    assert plan.requeue_at is None
    assert is_free(controller)


async def test_gpus_of_a_job_that_moves_to_a_queue_are_taken_until_its_pods_are_gone(controller: Controller) -> None:
    controller.informer.take("ADDED", POD)
    decide(controller, make_job(RUNNING))
    assert not is_free(controller)
    decide(controller, make_job(RUNNING), VIEW)
    assert not is_free(controller)
    controller.informer.take("DELETED", replace(POD, deleting=True))
    decide(controller, make_job(RUNNING), VIEW)
    assert is_free(controller)


async def test_gpus_of_a_job_of_kueue_are_not_counted_here(controller: Controller) -> None:
    controller.informer.take("ADDED", POD)
    admission = AdmissionStatus(admitted=True, gpus={GPU: 2}, queue="team")
    decide(controller, make_job(RUNNING.model_copy(update={"admission": admission})), assigned(2))
    assert is_free(controller)


async def test_a_job_whose_passes_fail_keeps_its_gpus_and_nobody_waiting(controller: Controller) -> None:
    async def existing() -> AsyncIterator[list[tuple[str, str]]]:
        yield [KEY]

    await controller._admission.expect(existing())
    assert controller._admission._unseen == {KEY}
    with pytest.raises(ApiError):
        await controller._pass(KEY)
    assert not controller._admission._unseen
    assert not is_free(controller)
