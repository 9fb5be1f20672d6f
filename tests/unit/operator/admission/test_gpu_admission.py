"""When decisions are made: for all jobs at once, not before every job is known, and not all the time."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from longshore.api.rljob import RLJob
from longshore.api.status import AdmissionStatus, Phase, RLJobStatus
from longshore_operator.admission.gpu_admission import GpuAdmission
from longshore_operator.config import NO_ADMISSION, AdmissionConfig
from longshore_operator.context import Admission
from longshore_operator.identity import Key
from tests.unit.operator.model import START, make_job

GPU = "nvidia.com/gpu"
CONFIG = AdmissionConfig(capacity={GPU: 2})


def named(name: str, status: RLJobStatus | None = None) -> RLJob:
    """A job that needs two GPUs; names are in the order of age."""
    job = make_job(status)
    return job.model_copy(update={"metadata": job.metadata | {"name": name, "creationTimestamp": name}})


def held(name: str) -> RLJob:
    admission = AdmissionStatus(admitted=True, gpus={GPU: 2})
    return named(name, RLJobStatus(attempt=1, phase=Phase.RUNNING, admission=admission))


async def pages(*found: Sequence[Key]) -> AsyncIterator[Sequence[Key]]:
    for page in found:
        yield page


def reported(fleet: GpuAdmission, job: RLJob) -> Admission:
    key = (str(job.metadata["namespace"]), str(job.metadata["name"]))
    fleet.report(key, job, (), START)
    admission = fleet.state(key)
    assert admission is not None
    return admission


async def test_nobody_is_admitted_before_every_job_that_exists_was_looked_at() -> None:
    woken: list[Key] = []
    fleet = GpuAdmission(CONFIG, woken.append)
    assert not reported(fleet, named("a")).admitted
    await fleet.expect(pages([("team", "a")], [("team", "b"), ("team", "gone")]))
    assert set(woken) == {("team", "a"), ("team", "b"), ("team", "gone")}
    assert not reported(fleet, named("a")).admitted
    assert reported(fleet, held("b")).admitted
    fleet.withdraw(("team", "gone"), ())
    assert reported(fleet, named("a")).message == "the job needs 2 nvidia.com/gpu, and 0 are free"
    fleet.close()


async def test_a_job_that_cannot_be_looked_at_keeps_its_gpus_and_nobody_waiting() -> None:
    fleet = GpuAdmission(CONFIG, lambda _: None)
    await fleet.expect(pages([("team", "a"), ("team", "b"), ("team", "c")]))
    fleet.report_failed(("team", "a"), held("a"), (), START)
    assert not reported(fleet, named("b")).message, "nothing is decided before every job is known"
    fleet.report_failed(("team", "c"), named("c"), (), START)
    assert reported(fleet, named("b")).message == "the job needs 2 nvidia.com/gpu, and 0 are free"
    fleet.report_failed(("team", "c"), held("c"), (), START)
    fleet._not_before_s = 0.0  # Without a pause since the last decision.
    fleet.withdraw(("team", "a"), ())
    assert reported(fleet, named("b")).admitted, "a later failure of a pass changes nothing"
    fleet.close()


async def test_a_job_that_arrives_while_gpus_are_free_is_admitted_in_its_first_pass() -> None:
    woken: list[Key] = []
    fleet = GpuAdmission(CONFIG, woken.append)
    await fleet.expect(pages())
    assert reported(fleet, named("a")).admitted
    assert woken == []
    fleet.close()


async def test_changes_that_come_together_are_decided_together() -> None:
    woken: asyncio.Queue[Key] = asyncio.Queue()
    fleet = GpuAdmission(CONFIG, woken.put_nowait)
    await fleet.expect(pages())
    assert reported(fleet, named("a")).admitted
    fleet.withdraw(("team", "a"), ())
    assert not reported(fleet, named("c")).admitted
    assert not reported(fleet, named("b")).admitted
    async with asyncio.timeout(60):
        first, second = await woken.get(), await woken.get()
    assert {first, second} == {("team", "b"), ("team", "c")}
    assert reported(fleet, named("b")).admitted, "the older job, though its pass came later"
    fleet.close()


async def test_without_limits_nobody_is_asked() -> None:
    fleet = GpuAdmission(NO_ADMISSION, lambda _: None)
    fleet.report(("team", "a"), named("a"), (), START)
    assert fleet.state(("team", "a")) is None
