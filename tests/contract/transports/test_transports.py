"""What a reward pool relies on, whichever transport leads to a worker: a thread, a Ray actor or a reward pod."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from longshore.api.reward import RewardFunction
from longshore_runtime.cluster.placement import placement
from longshore_runtime.rewards.scoring import (
    RewardError,
    RewardSetupError,
    ScoreItem,
    ScoreOutcome,
    ScoreResult,
    WorkerDied,
)
from longshore_runtime.rewards.transports.ray_actor import RayTransport
from longshore_runtime.rewards.transports.thread import ScoringThread
from longshore_runtime.rewards.transports.transport import Transport, WorkerPlace
from tests import ray_pods
from tests.contract.transports.scripted_scorers import BROKEN, FUNCTIONS, SOUND, UNUSABLE, Scripted
from tests.unit.runtime.reward_servers import Pods

LIMIT_S = 120.0


@dataclass
class Way:
    """A place for workers, and the pod that it is in."""

    place: WorkerPlace
    lose_pod: Callable[[], None] | None = None

    def start(self, function: RewardFunction = SOUND) -> Transport:
        return self.place.start(Scripted((function,), "output"), 0.0)


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ray_pods.Pods]:
    """Ray with one worker pod."""
    with ray_pods.worker_pods(tmp_path_factory.mktemp("storage"), 1) as pods:
        yield pods


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """Yield one reward pod."""
    pods = Pods(tmp_path, factory=Scripted(FUNCTIONS, "output"))
    yield pods
    pods.close()


@pytest.fixture(params=["thread", "actor", "pod"])
def way(request: pytest.FixtureRequest) -> Way:
    match request.param:
        case "actor":
            ray: ray_pods.Pods = request.getfixturevalue("ray")
            if 0 not in ray.nodes:
                ray.join(0)
            return Way(WorkerPlace("worker 0", partial(RayTransport, placement(0).remote)), lambda: ray.leave(0))
        case "pod":
            pods: Pods = request.getfixturevalue("pods")
            (place,) = pods.places(1)
            pods.join(0)
            return Way(place, lambda: pods.leave(0))
    return Way(WorkerPlace("this pod", ScoringThread))


def item(response: str, prompt: str = "prompt") -> ScoreItem:
    return ScoreItem(f"response {response}", prompt, response, "", {})


def hung_call(worker: Transport, directory: Path) -> "Future[list[ScoreOutcome]]":
    """Have a worker score a response that hangs, and return when it does."""
    begun = directory / "begun"
    os.mkfifo(begun)
    answer = worker.score("sound", [item("hangs", str(begun))])
    assert begun.read_text() == "begun"
    return answer


def test_each_response_of_a_call_has_its_own_outcome(way: Way) -> None:
    worker = way.start()
    assert worker.ready.result(LIMIT_S).sandbox is None
    assert worker.node.result(LIMIT_S)
    for _ in range(2):
        outcomes = worker.score("sound", list(map(item, ("1", "error", "fault", "broken", "0.25")))).result(LIMIT_S)
        assert outcomes[0] == ScoreResult(1.0, 0.5) and outcomes[4] == ScoreResult(0.25, 0.5)
        failures = [(outcome.kind, str(outcome)) for outcome in outcomes if not isinstance(outcome, ScoreResult)]
        assert failures == [(kind, f"response {kind} is a {kind}") for kind in ("error", "fault", "broken")]
    assert not worker.death.done()
    worker.kill()


def test_a_function_that_can_score_nothing_is_reported_as_such(way: Way) -> None:
    worker = way.start(UNUSABLE)
    with pytest.raises(RewardSetupError, match=r"^reward.functions\[unusable\].importPath: there is no such module$"):
        worker.ready.result(LIMIT_S)
    worker.kill()


def test_a_worker_that_does_not_start_says_why_and_is_no_mistake_of_the_user(way: Way) -> None:
    worker = way.start(BROKEN)
    error = worker.ready.exception(LIMIT_S)
    assert "CUDA error: the MPS server is not ready" in str(error) and not isinstance(error, RewardError)
    assert worker.node.result(LIMIT_S), "it had a place"
    worker.kill()


def test_the_call_of_a_worker_that_is_killed_fails_though_it_hangs(way: Way, tmp_path: Path) -> None:
    worker = way.start()
    worker.ready.result(LIMIT_S)
    answer = hung_call(worker, tmp_path)
    worker.kill()
    with pytest.raises(WorkerDied):
        answer.result(LIMIT_S)
    successor = way.start()
    successor.ready.result(LIMIT_S)
    assert successor.score("sound", [item("1")]).result(LIMIT_S) == [ScoreResult(1.0, 0.5)]
    successor.kill()


@pytest.mark.parametrize("way", ["actor", "pod"], indirect=True)
def test_a_worker_that_is_lost_with_its_pod_fails_its_calls_and_gives_a_reason(way: Way, tmp_path: Path) -> None:
    worker = way.start()
    worker.ready.result(LIMIT_S)
    answer = hung_call(worker, tmp_path)
    assert way.lose_pod is not None
    way.lose_pod()
    reason = worker.death.result(LIMIT_S)
    with pytest.raises(WorkerDied, match=r"\w"):
        answer.result(LIMIT_S)
    assert reason and "\n" not in reason
    with pytest.raises(WorkerDied):  # Whoever has not heard of the death yet may go on calling.
        worker.score("sound", [item("1")]).result(LIMIT_S)
    worker.kill()


def test_a_worker_that_is_killed_while_it_starts_is_never_ready(way: Way) -> None:
    worker = way.place.start(Scripted((SOUND,), "output"), LIMIT_S)
    worker.kill()
    with pytest.raises(WorkerDied):
        worker.ready.result(LIMIT_S / 2)


def test_a_call_after_the_end_of_a_worker_fails(way: Way) -> None:
    worker = way.start()
    worker.ready.result(LIMIT_S)
    worker.kill()
    with pytest.raises(WorkerDied):
        worker.score("sound", [item("1")]).result(LIMIT_S)
