"""The object of a sharing group, and an API server that refuses, has forgotten it, or has something else there."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from longshore.api.names import Component, sharing_token
from longshore.api.rljob import RLJob
from longshore.api.sharing import RuntimeSharing
from longshore.api.status import AdmissionStatus, Phase, RLJobStatus
from longshore_kube.access import Access
from longshore_kube.errors import ApiError
from longshore_operator.admission.config import AdmissionConfig
from longshore_operator.controller import Controller
from longshore_operator.informer import Key
from longshore_operator.kube import KubeClient
from longshore_operator.metrics import OperatorMetrics
from longshore_operator.observed import PodView
from longshore_operator.plan import OperatorConfig
from longshore_operator.sharing.desk import SharingDesk
from longshore_operator.sharing.view import SharingView
from tests.unit.operator.model import START, make_job
from tests.unit.operator.sharing.test_concern import SPEC

OBJECT = "night-sharing"
GPU = SPEC["workers"]["gpuResourceName"]
Found = dict[str, Any]


class Api(KubeClient):
    """An API server with the ConfigMap of one group, as the documented API treats it."""

    def __init__(self) -> None:
        super().__init__(Access("http://nowhere"))
        self.stored: Found | None = None
        self.num_writes = 0
        self.is_terminating = False
        self.forbids = False
        self.rival: Found | None = None
        """What another operator writes before the next write."""

    async def get(self, kind: str, namespace: str, name: str, *, metadata_only: bool = False) -> Found | None:
        return self.stored if kind == "ConfigMap" and name == OBJECT else None

    async def create(self, manifest: Found, kind: str = "") -> Found | None:
        self._refuse(create=True)
        return None if self._rival_writes() or self.stored is not None else self._write(manifest)

    async def merge(self, kind: str, namespace: str, name: str, change: Found, subresource: str = "") -> Found | None:
        self._refuse()
        self._rival_writes()
        if self.stored is None or self.stored["metadata"]["resourceVersion"] != change["metadata"]["resourceVersion"]:
            return None
        metadata = self.stored["metadata"] | change["metadata"]
        return self._write(self.stored | change | {"metadata": metadata})

    def _refuse(self, *, create: bool = False) -> None:
        if self.forbids or (create and self.is_terminating):
            raise ApiError(403, "Forbidden", "because it is being terminated" if self.is_terminating else "")

    def _rival_writes(self) -> bool:
        rival, self.rival = self.rival, None
        if rival is not None:
            self._write(rival)
        return rival is not None

    def _write(self, manifest: Found) -> Found:
        self.num_writes += 1
        self.stored = manifest | {"metadata": manifest["metadata"] | {"resourceVersion": str(self.num_writes)}}
        return self.stored


@dataclass
class Fleet:
    """Jobs that share GPUs, their pods, and an operator that looks at them."""

    api: Api = field(default_factory=Api)
    pods: list[PodView] = field(default_factory=list)
    woken: list[Key] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.desk = SharingDesk(self.api, lambda *_: self.pods, self.woken.append)

    async def look(
        self, name: str, asked: int = 0, returned: int = 0, group: str | None = "night"
    ) -> SharingView | None:
        report = RuntimeSharing(asked=asked, returned=returned)
        return await self.desk.look(job(name, report, group), self.of(name), START)

    async def leave(self, name: str) -> None:
        await self.desk.leave(("team", name), self.of(name), START)

    def starts(self, name: str) -> None:
        self.pods.append(pod(name))

    def ends(self, name: str) -> None:
        self.pods = [one for one in self.pods if one.job != name]

    def of(self, name: str) -> list[PodView]:
        return [one for one in self.pods if one.job == name]

    def collect_garbage(self) -> None:
        self.api.stored = None


def job(name: str, report: RuntimeSharing, group: str | None = "night", phase: Phase = Phase.RUNNING) -> RLJob:
    spec = SPEC if group == "night" else {key: value for key, value in SPEC.items() if key != "sharing"}
    runtime = {"attempt": 1, "sharing": report.model_dump(by_alias=True)}
    admission = AdmissionStatus(admitted=True, gpus={GPU: 2})
    status = RLJobStatus.model_validate({"attempt": 1, "phase": phase, "runtime": runtime, "admission": admission})
    made = make_job(status, **spec)
    return made.model_copy(update={"metadata": made.metadata | {"name": name, "uid": f"{name}-uid"}})


def pod(name: str) -> PodView:
    return PodView(
        f"{name}-worker-0", "team", f"{name}-1", name, Component.WORKER, 0, 1, phase="Running", node="n",
        owner_uid=f"{name}-uid", sharing=sharing_token("team", "night"),
    )  # fmt: skip


@pytest.fixture
async def fleet() -> Fleet:
    """With one job that has the GPUs."""
    fleet = Fleet()
    fleet.starts("a")
    await fleet.look("a", asked=1)
    await fleet.look("a", asked=1)
    return fleet


def granted(view: SharingView | None) -> int:
    assert view is not None
    assert view.turns is not None
    return view.turns.granted


async def test_no_object_of_a_group_comes_back_after_its_last_job(fleet: Fleet) -> None:
    assert fleet.api.stored is not None
    fleet.collect_garbage()
    await fleet.leave("a")
    fleet.ends("a")
    await fleet.leave("a")
    assert fleet.api.stored is None


async def test_a_job_leaves_a_namespace_that_is_being_deleted(fleet: Fleet) -> None:
    fleet.api.is_terminating = True
    fleet.collect_garbage()
    fleet.ends("a")
    await fleet.leave("a")
    assert not (fleet.desk._groups or fleet.desk._groups_of)


async def test_a_job_that_is_gone_is_forgotten_also_while_its_group_cannot_be_written() -> None:
    """Its GPUs are booked for nobody, and its group gets rid of it later."""
    api, key = Api(), ("team", "a")
    config = OperatorConfig(runtime_image="unused", admission=AdmissionConfig(capacity={GPU: 2}))
    controller = Controller(api, config, OperatorMetrics(), "team", clock=lambda: START)
    asks = job("a", RuntimeSharing(asked=1))
    controller._desk.look(key, asks, (pod("a"),), START)
    await controller._sharing.look(asks, (pod("a"),), START)
    api.forbids = True
    ledger = controller._desk._ledger
    assert ledger is not None
    assert ledger._requests
    with pytest.raises(ApiError):
        await controller._pass(key)
    assert not ledger._requests
    api.forbids = False
    assert not (await controller._pass(key)).exists
    await controller.close()


async def test_a_group_that_another_operator_has_changed_is_read_again(fleet: Fleet) -> None:
    rival = Fleet()
    rival.pods = [pod("a"), pod("b")]
    rival.api.stored = fleet.api.stored
    await rival.look("b")
    fleet.api.rival = rival.api.stored
    fleet.starts("c")
    await fleet.look("c")
    assert {member.job for member in fleet.desk._groups["team", "night"].content.members} == {"a", "b", "c"}
    assert ("team", "b") in fleet.woken


async def test_an_object_that_was_deleted_comes_back_with_what_is_remembered(fleet: Fleet) -> None:
    fleet.collect_garbage()
    fleet.starts("b")
    assert granted(await fleet.look("b", asked=1)) == 0
    assert granted(await fleet.look("a", asked=1)) == 1
    assert fleet.api.stored is not None


async def test_jobs_leave_a_group_that_cannot_be_read_and_the_others_go_on_once_it_can(fleet: Fleet) -> None:
    fleet.starts("b")
    fleet.api._write({"metadata": {}, "data": {"group.json": "garbage"}})
    view = await fleet.look("b", asked=1)
    assert view is not None
    assert view.mistake == ("ConfigMap night-sharing does not hold a sharing group, so no turn is granted: delete it")
    await fleet.look("a", group=None)
    fleet.ends("a")
    await fleet.leave("a")
    fleet.collect_garbage()
    assert granted(await fleet.look("b", asked=1)) == 1


@pytest.mark.parametrize("time", ["1e300", "-1.0", "NaN", "Infinity"])
async def test_times_with_which_nobody_can_calculate_are_no_group(fleet: Fleet, time: str) -> None:
    """Who may write the object cannot stop the passes of its jobs, which then could not be suspended either."""
    assert fleet.api.stored is not None
    written = fleet.api.stored["data"]["group.json"]
    fleet.api._write({"metadata": {}, "data": {"group.json": written.replace('_at_s":0.0', f'_at_s":{time}')}})
    restarted = Fleet(fleet.api, fleet.pods)
    view = await restarted.look("a", asked=1)
    assert view is not None
    assert "does not hold a sharing group" in view.mistake


async def test_a_job_that_leaves_a_group_that_cannot_be_read_is_woken_if_that_still_names_it(fleet: Fleet) -> None:
    before = fleet.api.stored
    fleet.starts("b")
    await fleet.look("b")
    assert before is not None
    fleet.api._write({"metadata": {}, "data": {"group.json": "garbage"}})
    await fleet.look("b")
    fleet.ends("a")
    await fleet.leave("a")
    fleet.api._write(before)
    fleet.woken.clear()
    await fleet.look("b")
    assert ("team", "a") in fleet.woken


async def test_groups_without_members_and_jobs_that_wait_are_forgotten(fleet: Fleet) -> None:
    assert set(fleet.desk._groups) == {("team", "night")}
    assert dict(fleet.desk._groups_of) == {("team", "a"): {("team", "night")}}
    fleet.ends("a")
    await fleet.look("a", group=None)
    assert not (fleet.desk._groups or fleet.desk._groups_of)


async def test_counters_of_any_size_cost_one_write_for_each_report(fleet: Fleet) -> None:
    for asked, returned in ((10**9, 0), (10**9, 10**9), (2**53, 2**53 - 1)):
        writes = fleet.api.num_writes
        for _ in range(5):
            await fleet.look("a", asked=asked, returned=returned)
        assert fleet.api.num_writes <= writes + 1


async def test_members_are_shown_which_pod_or_job_their_group_waits_for(fleet: Fleet) -> None:
    fleet.starts("b")
    await fleet.look("b", asked=1)
    fleet.pods[0] = replace(fleet.pods[0], deleting=True)
    fleet.woken.clear()
    await fleet.look("a", asked=1)
    assert ("team", "b") in fleet.woken
    view = await fleet.look("b", asked=1)
    assert view is not None
    assert view.waits_for == (
        "the next turn begins when pod a-worker-0 on node n is gone, which is being deleted and has the GPUs"
    )
    fleet.ends("a")
    await fleet.leave("a")
    view = await fleet.look("b", asked=1)
    assert view is not None
    assert (view.waits_for, granted(view)) == ("", 1)
    fleet.woken.clear()
    fleet.starts("stranger")
    await fleet.look("b", asked=1)
    assert ("team", "b") in fleet.woken
    view = await fleet.look("b", asked=1)
    assert view is not None
    assert view.waits_for == (
        "no turn is granted, since pod stranger-worker-0 on node n has the label of the group and is of no member: "
        "wait for its end, or delete it"
    )


async def test_members_are_shown_which_job_an_operator_that_starts_has_not_looked_at(fleet: Fleet) -> None:
    fleet.starts("b")
    await fleet.look("b", asked=1)
    fleet.desk = SharingDesk(fleet.api, lambda *_: fleet.pods, fleet.woken.append)
    view = await fleet.look("b", asked=1)
    assert view is not None
    assert view.waits_for == (
        "no turn is granted, since the operator has not looked at attempt 1 of job a since it started, of which pod "
        "a-worker-0 on node n is left"
    )
    fleet.woken.clear()
    await fleet.look("a", asked=1)
    assert ("team", "b") in fleet.woken
