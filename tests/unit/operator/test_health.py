"""Healthy means that reconciling makes progress."""

import time
from collections.abc import AsyncIterator

import pytest

from longshore_kube.access import Access
from longshore_operator.controller import Controller
from longshore_operator.health import MAX_SILENCE_S, MAX_STALL_S, obstacle
from longshore_operator.kube import KubeClient
from longshore_operator.metrics import OperatorMetrics
from tests.unit.operator.model import CONFIG


@pytest.fixture
async def controller() -> AsyncIterator[Controller]:
    """A controller whose pods were never listed, so that no pass can end."""
    controller = Controller(KubeClient(Access("http://nowhere.invalid")), CONFIG, OperatorMetrics(), None)
    yield controller
    await controller.close()


async def test_a_leader_that_hears_of_pods_and_has_nothing_pending_is_healthy(controller: Controller) -> None:
    assert obstacle(controller, True, time.monotonic()) is None


async def test_passes_that_do_not_end_are_unhealthy(controller: Controller) -> None:
    controller.schedule.wake(("team", "demo"))
    assert obstacle(controller, True, time.monotonic()) is None
    reason = obstacle(controller, True, time.monotonic() + MAX_STALL_S + 1)
    assert reason is not None
    assert "no reconciliation has ended" in reason


async def test_silence_about_pods_is_unhealthy(controller: Controller) -> None:
    reason = obstacle(controller, True, time.monotonic() + MAX_SILENCE_S + 1)
    assert reason is not None
    assert "nothing was heard" in reason


async def test_a_process_that_stands_by_is_healthy(controller: Controller) -> None:
    assert obstacle(controller, False, time.monotonic() + 10 * MAX_SILENCE_S) is None


async def test_waiting_jobs_are_counted_once_however_often_they_are_woken(controller: Controller) -> None:
    for name in ("a", "b", "a"):
        controller.schedule.wake(("team", name))
    assert controller.schedule.num_pending() == 2
