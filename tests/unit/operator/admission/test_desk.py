"""When decisions are made: for all jobs at once, not before every job is known, and not all the time."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from longshore.api.rljob import RLJob
from longshore.api.status import AdmissionStatus, Phase, RLJobStatus
from longshore_operator.admission.config import NO_ADMISSION, AdmissionConfig
from longshore_operator.admission.demand import Key
from longshore_operator.admission.desk import AdmissionDesk
from longshore_operator.observed import Standing
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


def look(desk: AdmissionDesk, job: RLJob) -> Standing:
    key = (str(job.metadata["namespace"]), str(job.metadata["name"]))
    standing = desk.look(key, job, (), START)
    assert standing is not None
    return standing


async def test_nobody_is_admitted_before_every_job_that_exists_was_looked_at() -> None:
    woken: list[Key] = []
    desk = AdmissionDesk(CONFIG, woken.append)
    assert not look(desk, named("a")).admitted
    await desk.expect(pages([("team", "a")], [("team", "b"), ("team", "gone")]))
    assert set(woken) == {("team", "a"), ("team", "b"), ("team", "gone")}
    assert not look(desk, named("a")).admitted
    assert look(desk, held("b")).admitted
    desk.withdraw(("team", "gone"), has_pods=False)
    assert look(desk, named("a")).message == "the job needs 2 nvidia.com/gpu, and 0 are free"
    desk.close()


async def test_a_job_that_cannot_be_looked_at_keeps_its_gpus_and_nobody_waiting() -> None:
    desk = AdmissionDesk(CONFIG, lambda _: None)
    await desk.expect(pages([("team", "a"), ("team", "b"), ("team", "c")]))
    desk.recover(("team", "a"), held("a"), (), START)
    assert not look(desk, named("b")).message, "nothing is decided before every job is known"
    desk.recover(("team", "c"), named("c"), (), START)
    assert look(desk, named("b")).message == "the job needs 2 nvidia.com/gpu, and 0 are free"
    desk.recover(("team", "c"), held("c"), (), START)
    desk._not_before_s = 0.0  # Without a pause since the last decision.
    desk.withdraw(("team", "a"), has_pods=False)
    assert look(desk, named("b")).admitted, "a later failure of a pass changes nothing"
    desk.close()


async def test_a_job_that_arrives_while_gpus_are_free_is_admitted_in_its_first_pass() -> None:
    woken: list[Key] = []
    desk = AdmissionDesk(CONFIG, woken.append)
    await desk.expect(pages())
    assert look(desk, named("a")).admitted
    assert woken == []
    desk.close()


async def test_changes_that_come_together_are_decided_together() -> None:
    woken: asyncio.Queue[Key] = asyncio.Queue()
    desk = AdmissionDesk(CONFIG, woken.put_nowait)
    await desk.expect(pages())
    assert look(desk, named("a")).admitted
    desk.withdraw(("team", "a"), has_pods=False)
    assert not look(desk, named("c")).admitted
    assert not look(desk, named("b")).admitted
    async with asyncio.timeout(60):
        first, second = await woken.get(), await woken.get()
    assert {first, second} == {("team", "b"), ("team", "c")}
    assert look(desk, named("b")).admitted, "the older job, though its pass came later"
    desk.close()


async def test_without_limits_nobody_is_asked() -> None:
    desk = AdmissionDesk(NO_ADMISSION, lambda _: None)
    assert not desk.is_open
    assert desk.look(("team", "a"), named("a"), (), START) is None
