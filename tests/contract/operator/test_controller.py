"""What a pass costs the API server: passes of the real controller, against the embedded API server without nodes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.api.rljob import RLJob
from longshore_kube.access import Access
from longshore_kube.client import Client, Patch
from longshore_operator import rljob_watch, schedule
from longshore_operator.apply import Executor
from longshore_operator.children import children
from longshore_operator.config import OperatorConfig
from longshore_operator.controller import Controller
from longshore_operator.job_memory import CLAIM_PATIENCE, EVENT_BURST, RESYNC
from longshore_operator.kube import RLJOBS, KubeClient, Object
from longshore_operator.metrics import OperatorMetrics
from longshore_operator.pod_view import pod_view
from longshore_operator.rljob_watch import JobNews
from tests.contract.operator.no_nodes import JOB as KEY
from tests.contract.operator.no_nodes import api_server, create_job
from tests.unit.operator.model import SPEC

REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}
READY = {"type": "Ready", "status": "True"}
READ = [("GET", "rljobs")]


def news_of(job: Object) -> JobNews:
    """What the watch tells of a job."""
    metadata = job["metadata"]
    return JobNews(metadata["uid"], metadata["resourceVersion"], metadata["generation"])


class CountingClient(Client):
    """The client, which remembers what it asked for."""

    calls: list[tuple[str, str]] = []

    async def request(self, method: str, path: str, **options: Any) -> Object:
        self.calls.append((method, path))
        return await super().request(method, path, **options)


class CountingKube(KubeClient):
    """With such a client."""

    client: CountingClient

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self.client = CountingClient(access, "longshore-operator")


class Operator:
    """A controller whose passes are looked at one by one, at times that a test chooses."""

    def __init__(self, kube: CountingKube) -> None:
        self.kube = kube
        self.now = datetime.now(UTC)
        self.metrics = OperatorMetrics()
        config = OperatorConfig(runtime_image="unused", network_policies=False)
        self.controller = Controller(kube, config, self.metrics, "default", clock=lambda: self.now)

    async def look(self) -> list[tuple[str, str]]:
        """One pass; returns its requests, resources by their plural."""
        self.kube.client.calls = []
        await self.controller._pass(KEY)
        return [(method, path.split("/default/")[1].split("/")[0]) for method, path in self.kube.client.calls]

    async def until_idle(self) -> None:
        """Passes until one asks for nothing: the job, which starts, is known."""
        for _ in range(10):
            if await self.look() == []:
                return
        raise AssertionError(f"still at work: {self.kube.client.calls}")

    async def report(self, runtime: dict[str, Any]) -> None:
        """What the coordinator does."""
        metadata = {"namespace": KEY[0], "name": KEY[1]}
        body = {"apiVersion": "longshore.dev/v1alpha1", "kind": "RLJob", "metadata": metadata}
        async with KubeClient(self.kube.client.access, "longshore-coordinator") as coordinator:
            await coordinator.apply(body | {"status": {"runtime": runtime}}, "status")
        job = await self.kube.get("RLJob", *KEY)
        assert job is not None
        self.controller.on_news(KEY, news_of(job))

    async def create(self, name: str, spec: dict[str, Any]) -> Object:
        """Another job."""
        job = {"apiVersion": "longshore.dev/v1alpha1", "kind": "RLJob", "spec": spec}
        created = await self.kube.create(job | {"metadata": {"namespace": KEY[0], "name": name}})
        assert created is not None
        return created

    async def pod_status(self, status: dict[str, Any], node: str = "", name: str = "demo-coordinator") -> None:
        """What scheduler and kubelet do, as the informer hears it."""
        pod = await self.kube.get("Pod", KEY[0], name)
        assert pod is not None
        seen = pod | {"status": status, "spec": pod["spec"] | {"nodeName": node}}
        self.controller.informer.take("MODIFIED", pod_view(seen))

    async def until_no_pass_is_due(self) -> None:
        async with asyncio.timeout(60):
            while self.controller.schedule.num_pending():  # noqa: ASYNC110 - passes end without telling anybody
                await asyncio.sleep(0.01)


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Operator]:
    """With one job, which is as it should be."""
    async with api_server(tmp_path) as access, CountingKube(access) as kube:
        await create_job(kube, SPEC)
        operator = Operator(kube)
        await operator.until_idle()
        yield operator
        await operator.controller.close()


async def test_a_coordinators_report_costs_one_read(operator: Operator) -> None:
    await operator.report({"attempt": 1, "step": 7})
    assert await operator.look() == READ
    assert await operator.look() == []


async def test_events_of_one_job_are_bounded_and_counted(operator: Operator) -> None:
    num_posted = 0
    for number in range(5):
        notices = [{"number": 16 * number + one + 1, "reason": "Noise", "message": "x"} for one in range(16)]
        await operator.report({"attempt": 1, "notices": notices})
        num_posted += (await operator.look()).count(("POST", "events"))
    assert num_posted < EVENT_BURST
    dropped = operator.metrics.registry.get_sample_value("longshore_operator_events_dropped_total")
    assert dropped == 80 - num_posted
    assert ("POST", "events") not in await operator.look(), "what was dropped is not posted later"


async def test_a_status_that_cannot_be_read_is_reported_and_does_not_make_every_pass_write(operator: Operator) -> None:
    times = {"switchSeconds": 1, "preemptionSeconds": 1, "roundSeconds": {"Odd": {"one": 1}}}
    await operator.report({"attempt": 1, "rolloutTimes": times})
    assert ("POST", "events") in await operator.look()
    assert ("POST", "events") not in await operator.look()


async def test_children_are_read_again_ever_later_while_a_pod_does_not_start(operator: Operator) -> None:
    await operator.pod_status({"phase": "Pending"}, node="node-0")
    await operator.look()
    reads = []
    for second in range(0, 200, 10):
        operator.now += timedelta(seconds=10)
        if ("GET", "configmaps") in await operator.look():
            reads.append(second)
    assert len(reads) == 3
    assert reads[1] - reads[0] == 40
    assert reads[2] - reads[1] == 80


async def test_a_claim_that_is_bound_is_read_again_only_with_the_other_children(operator: Operator) -> None:
    await operator.pod_status({"phase": "Pending", "conditions": [REFUSED]})
    claim = f"/api/v1/namespaces/{KEY[0]}/persistentvolumeclaims/demo-storage"
    assert ("GET", "persistentvolumeclaims") in await operator.look(), "the scheduler may refuse a pod because of it"
    bound = {"status": {"phase": "Bound"}}
    await operator.kube.client.request("PATCH", f"{claim}/status", body=bound, content_type=Patch.MERGE.value)
    assert ("GET", "persistentvolumeclaims") in await operator.look()
    assert await operator.look() == []
    operator.now += RESYNC
    assert ("GET", "persistentvolumeclaims") in await operator.look()


async def test_a_claim_is_read_when_pods_have_been_pending_for_long(operator: Operator) -> None:
    assert await operator.look() == []
    operator.now += CLAIM_PATIENCE
    assert ("GET", "persistentvolumeclaims") in await operator.look()


async def test_the_patience_with_a_claim_begins_when_pods_are_created(operator: Operator) -> None:
    running = {"phase": "Running", "conditions": [READY], "podIP": "10.0.0.1"}
    await operator.pod_status(running, node="node-0")
    assert ("POST", "pods") in await operator.look(), "the workers"
    operator.now += CLAIM_PATIENCE
    assert ("GET", "persistentvolumeclaims") in await operator.look()


async def test_a_job_that_others_change_while_it_starts_is_read_again_and_changes_count(
    operator: Operator,
) -> None:
    await operator.kube.client.patch(RLJOBS, "demo", "default", {"spec": {"suspend": True}})
    await operator.pod_status({"phase": "Running", "podIP": "10.0.0.1"}, node="node-0")
    assert await operator.look() == [("PATCH", "rljobs")], "nobody has heard of the change, and the write is refused"
    calls = await operator.look()
    assert calls[:2] == [("GET", "rljobs"), ("PATCH", "rljobs")]
    assert ("POST", "pods") not in calls
    stored = await operator.kube.get("RLJob", *KEY)
    assert stored is not None
    assert stored["status"]["phase"] == "Suspended"


@pytest.mark.parametrize("num_changes", [1, 2])
async def test_changes_by_others_during_a_status_write_are_not_taken_for_the_operators_own(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, num_changes: int
) -> None:
    """The operator may hear of its own write alone: the newest state stands for those before it."""
    running = {"phase": "Running", "conditions": [READY]}
    await operator.pod_status(running | {"podIP": "10.0.0.1"}, node="node-0")
    await operator.look()
    await operator.pod_status(running | {"podIP": "10.0.0.2"}, node="node-0", name="demo-worker-0")
    write, woken, changes = operator.kube.apply, list[Any](), list(range(num_changes))

    async def write_late(manifest: Object, subresource: str = "") -> Object:
        if manifest["kind"] == "RLJob" and changes:
            number = changes.pop()
            change = {"metadata": {"annotations": {"change": str(number)}}} if number else {"spec": {"suspend": True}}
            await operator.kube.client.patch(RLJOBS, KEY[1], KEY[0], change)
        return await write(manifest, subresource)

    monkeypatch.setattr(operator.kube, "apply", write_late)
    monkeypatch.setattr(operator.controller.schedule, "wake", woken.append)
    phase = ""
    while phase != "Suspended":
        woken.clear()
        result = await operator.controller._pass(KEY)
        stored = await operator.kube.get("RLJob", *KEY)
        assert stored is not None
        phase = stored["status"]["phase"]
        operator.controller.on_news(KEY, news_of(stored))
        assert phase == "Suspended" or result.next_look_s == 0.0 or woken, "nobody looks at the job again"
    assert not changes


async def test_a_large_job_is_not_kept_in_memory(operator: Operator) -> None:
    assert operator.controller._memories[KEY].kept is not None
    template = {"metadata": {"annotations": {"note": "x" * 20_000}}}
    workers = SPEC["workers"] | {"template": template}
    await operator.create("large", SPEC | {"coordinator": {"template": template}, "workers": workers})
    await operator.controller._pass(("default", "large"))
    assert operator.controller._memories["default", "large"].kept is None


async def test_a_job_costs_at_most_24_requests_until_it_runs(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "SETTLE_S", 3_600.0)
    key, calls = ("default", "counted"), operator.kube.client.calls
    spec = SPEC | {"workers": {"replicas": 9, "gpusPerPod": 0}, "reward": {"pods": 0}}
    created = await operator.create(key[1], spec)
    calls.clear()
    operator.controller.on_news(key, news_of(created))
    operator.controller.schedule.open()
    await operator.until_no_pass_is_due()
    num_seen = 0
    for name in ["counted-coordinator", *(f"counted-worker-{index}" for index in range(9))]:
        for stage in [{}, {"phase": "Running"}, {"phase": "Running", "conditions": [READY], "podIP": "10.0.0.1"}]:
            await operator.pod_status(stage, node="node-0", name=name)
            num_seen += 1
        await operator.until_no_pass_is_due()
    stored = await operator.kube.get("RLJob", *key)
    assert stored is not None
    assert stored["status"]["phase"] == "Running"
    asked = Counter(method for method, path in calls[: -num_seen - 1])
    assert len(calls) - num_seen - 1 <= 24, asked


async def test_a_child_that_was_created_loses_what_its_manifest_has_no_more(operator: Operator) -> None:
    stored = await operator.kube.get("RLJob", *KEY)
    assert stored is not None
    service = children(RLJob.model_validate(stored), OperatorConfig(runtime_image="unused"))[1]
    assert service.key == ("Service", "demo-pods")
    del service.manifest["metadata"]["labels"]["app.kubernetes.io/instance"]
    changed = replace(service, fingerprint="another")
    executor = Executor(operator.kube, lambda *_: None, lambda _: None, lambda _: None, lambda *_: None)
    await executor.run(KEY, stored["metadata"]["uid"], [changed], operator.now)
    found = await operator.kube.get("Service", KEY[0], "demo-pods")
    assert found is not None
    assert found["metadata"]["labels"] == service.manifest["metadata"]["labels"]
    managers = [(entry["manager"], entry["operation"]) for entry in found["metadata"]["managedFields"]]
    assert managers == [("longshore-operator", "Apply")]


async def ended_job(operator: Operator) -> JobNews:
    """News of a job that has just ended."""
    await operator.kube.client.patch(RLJOBS, "demo", "default", {"spec": {"suspend": True}})
    await operator.kube.client.patch(RLJOBS, "demo", "default", {"spec": {"coordinator": {"template": {"spec": 5}}}})
    operator.controller._memories.clear()
    for _ in range(3):
        await operator.look()
    stored = await operator.kube.get("RLJob", *KEY)
    assert stored is not None
    assert stored["status"]["phase"] == "Failed"
    return replace(news_of(stored), resource_version="999999")


async def test_a_job_that_has_ended_is_not_read_again_until_its_spec_changes(operator: Operator) -> None:
    news = await ended_job(operator)
    operator.controller.on_news(KEY, news)
    assert operator.controller.schedule.num_pending() == 0
    operator.controller.on_news(KEY, replace(news, generation=news.generation + 1))
    assert operator.controller.schedule.num_pending() == 1


async def test_a_job_is_read_although_one_of_its_name_has_ended_and_nobody_saw_that_one_go(operator: Operator) -> None:
    news = await ended_job(operator)
    operator.controller.on_news(KEY, replace(news, uid="another", is_listed=True))
    assert operator.controller.schedule.num_pending() == 1


async def test_a_job_that_is_deleted_after_its_end_is_forgotten_although_nobody_saw_it_go(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = await ended_job(operator)
    await operator.create("other", SPEC)
    schedule = operator.controller.schedule
    schedule.open()
    schedule.wake(("default", "other"))
    await operator.until_no_pass_is_due()
    assert phases_of(operator) == {"demo", "other"}
    await operator.kube.delete("RLJob", *KEY, news.uid)
    monkeypatch.setattr(rljob_watch, "_DELETIONS_EVERY_S", 0.01)
    looking = asyncio.create_task(
        rljob_watch.find_deletions(operator.kube, "default", operator.controller._memories.keys(), schedule.wake)
    )
    async with asyncio.timeout(60):
        while phases_of(operator) != {"other"}:  # noqa: ASYNC110 - passes end without telling anybody
            await asyncio.sleep(0.01)
    looking.cancel()


def phases_of(operator: Operator) -> set[str]:
    """Names of the jobs whose phase the operator shows."""
    metrics = operator.metrics.registry.collect()
    samples = [sample for metric in metrics for sample in metric.samples]
    return {one.labels["job_name"] for one in samples if one.name == "longshore_operator_job_phase"}


async def test_a_job_that_changed_is_looked_at_before_those_that_are_only_listed(operator: Operator) -> None:
    controller = operator.controller
    calls: list[tuple[str, str]] = []
    operator.kube.client.calls = calls
    for index in range(40):
        controller.on_news(("default", f"other-{index}"), JobNews(f"uid-{index}", "1", 1, is_listed=True))
    controller.on_news(KEY, JobNews("uid", "999999", 99))
    controller.schedule.open()
    await operator.until_no_pass_is_due()
    assert calls[0][1].endswith("/rljobs/demo")
    assert len({path for _, path in calls if "/rljobs/other-" in path}) == 40
