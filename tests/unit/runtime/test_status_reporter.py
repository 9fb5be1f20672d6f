"""The newest report of the coordinator arrives, whatever became of those before."""

import asyncio
import json
import math
from typing import Any

import pytest
from aiohttp import web

from longshore.api.round_status import RolloutLoad, RoundKind, RoundStatus
from longshore.api.runtime_status import Notice, RewardLoad, RuntimeActivity, RuntimeStatus
from longshore_runtime.telemetry import status_reporter
from longshore_runtime.telemetry.status_fields import is_urgent
from longshore_runtime.telemetry.status_reporter import StatusReporter, pace_after
from tests.contract.kube_client.script import Answer, Script, access_to, failure, page

AN_HOUR_S = 3600.0
NUM_FAILURES = 5
"""More than a single request survives."""
ROUND = RoundStatus(number=8, kind=RoundKind.SHORT)
LOAD = RolloutLoad(projected_kv_peak_tokens=9, pods=[])


class Status(Script):
    """Keeps what was sent."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__(*answers)
        self.sent: list[list[dict[str, Any]]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.sent.append(json.loads(await request.read()))
        return await super().handle(request)


def steps_of(script: Status) -> list[int]:
    """The steps that were sent."""
    return [body[1]["value"]["step"] for body in script.sent]


async def reported(script: Status, *steps: int) -> list[int]:
    """The steps that arrive, one report after the other."""
    async with access_to(script) as access:
        reporter = StatusReporter(access, "team", "demo", "job-uid", pace_s=0.0)
        for number, step in enumerate(steps, 1):
            reporter.report(RuntimeStatus(attempt=1, step=step))
            await script.until_requested(number)
        await asyncio.to_thread(reporter.close)
    return steps_of(script)


async def test_a_report_replaces_the_runtime_part_of_the_status_of_its_own_job() -> None:
    script = Status(page([], 1))
    assert await reported(script, 7) == [7]
    (request,), (sent,) = script.requests, script.sent
    assert (request.method, request.content_type) == ("PATCH", "application/json-patch+json")
    assert request.path == "/apis/longshore.dev/v1alpha1/namespaces/team/rljobs/demo/status"
    assert sent[0] == {"op": "test", "path": "/metadata/uid", "value": "job-uid"}
    assert (sent[1]["op"], sent[1]["path"]) == ("add", "/status/runtime")


async def test_a_report_that_is_refused_does_not_stop_later_ones() -> None:
    assert await reported(Status(failure(422, "Invalid"), page([], 1)), 7, 8) == [7, 8]


@pytest.mark.parametrize("answer", [failure(503), failure(403, "Forbidden"), failure(409, "Conflict")])
async def test_the_newest_report_is_sent_again_until_the_server_takes_it(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that waits for its turn has asked for it in its last report."""
    monkeypatch.setattr("longshore_kube.client._pause_s", lambda *_, **__: None)
    script = Status(*[answer] * NUM_FAILURES, page([], 1))
    async with access_to(script) as access:
        reporter = StatusReporter(access, "team", "demo", "job-uid", pace_s=0.0, retry_s=0.01)
        reporter.report(RuntimeStatus(attempt=1, step=7))
        await script.until_requested(NUM_FAILURES + 1)
        await asyncio.to_thread(reporter.close)
    assert steps_of(script) == [7] * (NUM_FAILURES + 1)


async def test_a_newer_report_takes_the_place_of_one_that_did_not_arrive() -> None:
    script = Status(*[failure(403, "Forbidden")] * 2, page([], 1))
    async with access_to(script) as access:
        reporter = StatusReporter(access, "team", "demo", "job-uid", pace_s=0.0, retry_s=AN_HOUR_S)
        reporter.report(RuntimeStatus(attempt=1, step=7))
        await script.until_requested(1)
        reporter.report(RuntimeStatus(attempt=1, step=8, applied_epoch=3))
        await script.until_requested(2)
        reporter.report(RuntimeStatus(attempt=1, step=9, applied_epoch=4))
        await script.until_requested(3)
        await asyncio.to_thread(reporter.close)
    assert steps_of(script) == [7, 8, 9]


async def test_closing_does_not_wait_for_a_server_that_is_away() -> None:
    script = Status(failure(403, "Forbidden"), failure(403, "Forbidden"))
    async with access_to(script) as access:
        reporter = StatusReporter(access, "team", "demo", "job-uid", pace_s=0.0, retry_s=AN_HOUR_S)
        reporter.report(RuntimeStatus(attempt=1, step=7))
        await script.until_requested(1)
        await asyncio.to_thread(reporter.close)
    assert len(script.sent) <= 2, "it may be tried once more"


STEP = RuntimeStatus(attempt=1, step=7, activity=RuntimeActivity.TRAIN)


async def test_reports_in_quick_succession_become_few_requests_that_end_with_the_newest() -> None:
    script = Status(*[page([], 1)] * 9)
    async with access_to(script) as access:
        reporter = StatusReporter(access, "team", "demo", "job-uid", pace_s=0.2)
        reporter.report(STEP)
        await script.until_requested(1)
        for step in range(100):
            reporter.report(STEP.model_copy(update={"step": step}))
        await script.until_requested(2)
        await asyncio.to_thread(reporter.close)
    assert steps_of(script)[-1] == 99
    assert len(script.sent) < 9


@pytest.mark.parametrize(
    "change",
    [
        {"applied_epoch": 3},
        {"trainer_pods": [1]},
        {"activity": RuntimeActivity.DONE},
        {"activity": RuntimeActivity.FAILING},
        {"round": ROUND.model_copy(update={"load": LOAD})},
        {"notices": [Notice(number=1, reason="EngineLost", message="engine 1 was lost")]},
        {"rewards": RewardLoad(queue_length=9)},
    ],
)
async def test_what_the_operator_acts_on_is_reported_at_once_with_the_figures_that_wait(change: dict[str, Any]) -> None:
    script = Status(*[page([], 1)] * 9)
    async with access_to(script) as access:
        reporter = StatusReporter(access, "team", "demo", "job-uid", pace_s=AN_HOUR_S)
        reporter.report(STEP)
        await script.until_requested(1)
        reporter.report(STEP.model_copy(update={"step": 8, "round": ROUND}))
        reporter.report(STEP.model_copy(update={"step": 8, "round": ROUND} | change))
        reporter.report(STEP.model_copy(update={"step": 9, "round": ROUND} | change))
        await script.until_requested(2)
        await asyncio.to_thread(reporter.close)
    assert steps_of(script)[1] in (8, 9)
    assert steps_of(script)[-1] == 9


@pytest.mark.parametrize(
    ("elapsed_s", "pause_s"), [(-math.inf, 1.0), (0.0, 1.0), (20.0, 1.0), (60.0, 3.0), (200.0, 10.0), (7200.0, 10.0)]
)
def test_the_longer_an_activity_takes_the_less_often_it_is_reported(elapsed_s: float, pause_s: float) -> None:
    assert pace_after(elapsed_s) == pytest.approx(pause_s)
    assert pace_after(elapsed_s, least_s=AN_HOUR_S) == AN_HOUR_S


async def test_a_new_activity_is_reported_although_the_one_before_was_reported_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status_reporter, "pace_after", lambda elapsed_s, _: AN_HOUR_S if elapsed_s >= 0 else 0.0)
    script = Status(*[page([], 1)] * 9)
    async with access_to(script) as access:
        reporter = StatusReporter(access, "team", "demo", "job-uid", pace_s=0.0)
        reporter.report(STEP)
        await script.until_requested(1)
        reporter.report(STEP.model_copy(update={"reward": 0.5}))
        reporter.report(STEP.model_copy(update={"activity": RuntimeActivity.ROLLOUT}))
        await script.until_requested(2)
        await asyncio.to_thread(reporter.close)
    assert [body[1]["value"]["activity"] for body in script.sent] == ["Train", "Rollout"]


async def test_the_last_report_does_not_wait() -> None:
    script = Status(*[page([], 1)] * 9)
    async with access_to(script) as access:
        reporter = StatusReporter(access, "team", "demo", "job-uid", pace_s=AN_HOUR_S)
        reporter.report(STEP)
        await script.until_requested(1)
        reporter.report(STEP.model_copy(update={"step": 8}))
        await asyncio.to_thread(reporter.close)
    assert steps_of(script) == [7, 8]


def test_every_field_that_the_operator_reads_to_decide_is_urgent() -> None:
    """A new field is urgent until somebody says that it is only looked at."""
    figures = {field for field in RuntimeStatus.model_fields if not is_urgent_alone(field)}
    assert figures == {
        "activity", "activity_s", "progress", "round", "recent_rounds", "step", "reward", "held_out", "response_tokens",
        "tokens_per_s", "step_s", "bubble_share", "draws", "short", "long", "full", "checkpoint_step", "warm_start",
    }  # fmt: skip


def is_urgent_alone(field: str) -> bool:
    """Whether a change of this field, to something that no field has, is urgent."""
    return is_urgent(STEP, STEP.model_copy(update={field: None if field == "activity" else ROUND}))
