"""The workers of a job: what waits for an endpoint holds up neither its like nor what computes."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from longshore.api import contract
from longshore.api.pods import Workers
from longshore.api.reward import Reward, RewardKind
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.job_rewards import reward_pods, worker_groups
from longshore_runtime.rewards.child_process import start_child
from longshore_runtime.rewards.pool import RewardPool
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rollout.events import Event
from tests.contract.rewards.endpoint import Reply, service, serving
from tests.unit.runtime.reward_driver import LIMIT_S, Driver, ManualClock, pods_in

NUM_REQUESTS = 4
MATHS = 0
"""The draw whose response is compared; the others are judged and sent to a service in turn."""


class Closed:
    """An endpoint that answers nobody until all who may ask at a time have done so, and the test has opened it."""

    def __init__(self) -> None:
        self._asked, self._opened = threading.Semaphore(0), threading.Event()

    def __call__(self, path: str, body: dict[str, Any]) -> Reply:
        self._asked.release()
        assert self._opened.wait(LIMIT_S)
        return service(path, body)

    def open(self) -> None:
        """Wait for the requests, and answer them."""
        for _ in range(NUM_REQUESTS):
            assert self._asked.acquire(timeout=LIMIT_S)
        assert not self._asked.acquire(blocking=False), "more requests are open than a pod may have"
        self._opened.set()


def rewards(address: str, **fields: Any) -> Reward:
    functions = [
        {"name": "maths", "kind": "Maths", "domains": ["maths"]},
        {
            "name": "judge",
            "kind": "Judge",
            "domains": ["judge"],
            "judge": {"placement": "Remote", "url": f"{address}/v1"},
        },
        {"name": "service", "kind": "HTTP", "domains": ["service"], "http": {"url": f"{address}/score"}},
    ]
    return Reward.model_validate({"functions": functions, "workersPerPod": 1, "requestsPerPod": NUM_REQUESTS, **fields})


def record(draw: int) -> PromptRecord:
    name = "maths" if draw == MATHS else ("judge", "service")[draw % 2]
    return PromptRecord(draw, "prompt", (1,), "a", domain=name)


@pytest.fixture(params=[0, 1], ids=["coordinator", "pod"])
def driver_of(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Any]]:
    """A pool whose workers have all joined: those of one reward pod, or of the coordinator's."""
    with pods_in(tmp_path) as pods:
        pods.port, pods.calls_may_hang = contract.REWARD_PORT, False
        monkeypatch.setenv(contract.ENV_REWARD_TOKEN, str(tmp_path / "token"))

        @contextmanager
        def driver(address: str) -> Iterator[Driver]:
            reward = rewards(address, pods=request.param)
            if reward.pods:
                pods.factory = ScorerFactory(reward.computing + reward.waiting, "output")
                pods.num_workers = reward.num_computing + reward.num_waiting
                pods.join(0)
            events: queue.SimpleQueue[Event] = queue.SimpleQueue()
            with ExitStack() as resources:
                groups = worker_groups(reward, Workers(), reward_pods(reward, pods.address), resources)
                pool = RewardPool(groups, ScorerFactory(reward.functions, "output"), events, ManualClock())
                resources.callback(pool.stop)
                pool.use([record(draw) for draw in range(2 * NUM_REQUESTS)])
                made = Driver(pool, events, ManualClock(), [])
                made.until(lambda: pool.is_complete)
                yield made
            if reward.pods:
                pods.leave(0)

        yield driver


def test_a_pod_has_more_requests_open_than_workers_and_compares_an_answer_meanwhile(
    driver_of: Callable[[str], Any],
) -> None:
    start_child(RewardKind.MATHS).kill()  # The process that it was a fork of is there from now on.
    before, closed = set(psutil.Process().children(recursive=True)), Closed()
    with serving(closed) as endpoint, driver_of(endpoint.address) as driver:
        started = set(psutil.Process().children(recursive=True)) - before
        assert len(started) == 1, "the worker that compares answers has a process; those that wait have none"
        waiting = list(range(1, 2 * NUM_REQUESTS))
        driver.serve(*waiting, MATHS)
        (compared,) = driver.until_scored(1)
        assert compared.draw.index == MATHS and compared.error is None
        closed.open()
        groups = driver.until_scored(1 + len(waiting))
        assert sorted(group.draw.index for group in groups) == [MATHS, *waiting]
        assert [group.error for group in groups] == [None] * len(groups)
