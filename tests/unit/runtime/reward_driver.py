"""A reward pool, and the loop that a round runs around it."""

import contextlib
import queue
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from longshore.api.reward import Judge, RewardFunction, RewardKind
from longshore.policy.draws import Draw
from longshore.policy.reward_pods import RewardPressure
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.rewards import pool as reward_pool
from longshore_runtime.rewards.events import CheckDue, GroupScored, ResponseScored, WorkerLost
from longshore_runtime.rewards.pool import RewardPool
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.transports import pod
from longshore_runtime.rewards.workers import WorkerGroup
from longshore_runtime.rollout.events import Event
from longshore_runtime.trajectories.trajectory import Trajectory
from tests.unit.runtime.reward_servers import Pods

LIMIT_S = 120.0
NUM_PODS = 2
UNGRADABLE = 7
"""A draw whose response exceeds the context of the judge."""
TOO_LONG = 5_000
JUDGE = Judge(model_path="judge", prompt_template="{response}", score_pattern=r"(\d)", max_score=9)


@dataclass
class ManualClock:
    """A clock that is set by hand."""

    time_s: float = 0.0

    def now_s(self) -> float:
        return self.time_s


@dataclass
class Driver:
    """A pool with one worker per pod, and the loop that a round runs around it."""

    pool: RewardPool
    events: "queue.SimpleQueue[Event]"
    clock: ManualClock
    pressures: list[RewardPressure]
    scored: list[GroupScored] = field(default_factory=list)
    calls: list[list[int]] = field(default_factory=lambda: [[]])
    """Draws whose responses were answered, by call; the last call is still open."""

    def finish(self, *draws: int) -> list[ResponseId]:
        """A response of each draw finishes."""
        responses = [ResponseId(Draw(0, draw), 0) for draw in draws]
        for response in responses:
            self.pool.finished(response, completion(response))
        return responses

    def serve(self, *draws: int) -> None:
        """Groups of one response are served."""
        for draw in draws:
            response = ResponseId(Draw(0, draw), 0)
            self._note(self.pool.score(response.draw, {response: completion(response)}))

    def until(self, holds: Callable[[], bool]) -> None:
        """Handle events until something holds."""
        while not holds():
            event = self.events.get(timeout=LIMIT_S)
            if isinstance(event, ResponseScored):
                self.calls[-1].append(event.task.response.draw.index)
                if event.is_last_of_call:
                    self.calls.append([])
            self._note(self.pool.handle(event))  # type: ignore[arg-type]  # No engine and no trainer is here.

    def until_lost(self) -> None:
        """Handle events up to the next that tells of a lost worker, and that one."""
        is_reported = False
        while not is_reported:
            event = self.events.get(timeout=LIMIT_S)
            is_reported = isinstance(event, WorkerLost)
            self.pool.handle(event)  # type: ignore[arg-type]  # No engine and no trainer is here.

    def until_checked(self) -> None:
        """Handle events up to the next check of the workers, and that one."""
        event = None
        while event != CheckDue():
            event = self.events.get(timeout=LIMIT_S)
            self.pool.handle(event)  # type: ignore[arg-type]  # As above.

    def until_there(self, path: Path) -> None:
        """Handle events until a worker has made a file, which is gone afterwards."""
        while not path.exists():
            with contextlib.suppress(queue.Empty):
                self.pool.handle(self.events.get(timeout=0.05))  # type: ignore[arg-type]  # As above.
        path.unlink()

    def until_workers(self, num_workers: int) -> None:
        self.until(lambda: self.pool.pressure(0.0).num_workers == num_workers)

    def _note(self, scored: GroupScored | None) -> None:
        if scored is not None:
            self.scored.append(scored)

    def until_scored(self, num_groups: int) -> list[GroupScored]:
        self.until(lambda: len(self.scored) >= num_groups)
        return self.scored


def completion(response: ResponseId) -> Completion:
    """Completion of one character, by draw."""
    text = "x" * TOO_LONG if response.draw.index == UNGRADABLE else "abcdefgh"[response.draw.index]
    trajectory = Trajectory.sampled(0, list(map(ord, text)), [0.0] * len(text))
    return Completion(str(response), trajectory, FinishReason.STOP, 0).with_text(text)


def record(index: int, answer: str = "") -> PromptRecord:
    return PromptRecord(index, "prompt", (1,), answer)


@contextlib.contextmanager
def pods_in(directory: Path) -> Iterator[Pods]:
    """Reward pods in this process, and a coordinator that looks often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pod, "_TICK_S", 0.02)
        patch.setattr(reward_pool, "CHECK_EVERY_S", 0.05)
        pods = Pods(directory)
        yield pods
        pods.close()


@contextlib.contextmanager
def users_function(pods: Pods, factory: ScorerFactory, **options: Any) -> Iterator[Driver]:
    """A pool with a function of the user whose workers wait for pods."""
    options = {"import_path": "somewhere:gate", "timeout_s": LIMIT_S, **options}
    function = RewardFunction(name="gate", kind=RewardKind.PYTHON, **options)
    pods.factory = replace(factory, functions=(function,))
    group = WorkerGroup((function,), pods.places(NUM_PODS), is_sized=True)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    clock = ManualClock()
    pressures: list[RewardPressure] = []
    pool = RewardPool([group], ScorerFactory((function,), "output"), events, clock, pressures.append)
    pool.use([record(index) for index in range(8)])
    yield Driver(pool, events, clock, pressures)
    pool.stop()


def judges(pods: Pods, factory: ScorerFactory, options: Mapping[str, Any]) -> Driver:
    """A pool whose judges wait for pods."""
    function = RewardFunction(name="gate", kind=RewardKind.JUDGE, judge=JUDGE, **options)
    pods.factory = replace(factory, functions=(function,))
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    clock = ManualClock()
    group = WorkerGroup((function,), pods.places(NUM_PODS), is_sized=True)
    pool = RewardPool([group], pods.factory, events, clock, lambda _: None)
    pool.use([record(index) for index in range(8)])
    return Driver(pool, events, clock, [])
