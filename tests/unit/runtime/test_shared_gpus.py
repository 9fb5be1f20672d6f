"""The coordinator's side of a sharing group: when it asks, waits, sleeps and returns, and what it measures."""

import queue
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from longshore.api.runtime_status import RuntimeActivity
from longshore.api.sharing import RuntimeSharing
from longshore.policy.sharing_group import Grant
from longshore_runtime.elastic.shared_gpus import SharedGpus
from longshore_runtime.errors import Interrupted
from longshore_runtime.rollout.events import Event, StopRequested, TurnChanged, WeightsLost


@dataclass
class World:
    """An operator and a clock that do what the test says; `events` has what the driver has to do meanwhile."""

    granted: Grant = field(default_factory=Grant)
    now: float = 0.0
    events: "queue.SimpleQueue[Event]" = field(default_factory=queue.SimpleQueue)
    reports: list[RuntimeSharing] = field(default_factory=list)
    activities: list[RuntimeActivity] = field(default_factory=list)
    num_sleeps: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

    def now_s(self) -> float:
        return self.now

    @property
    def current_activity(self) -> RuntimeActivity | None:
        return self.activities[-1] if self.activities else None

    def activity(self, activity: RuntimeActivity) -> None:
        self.activities.append(activity)

    def sharing(self, report: RuntimeSharing) -> None:
        self.reports.append(report)

    def turn_metrics(self, values: Mapping[str, float]) -> None:
        self.metrics = dict(values)

    def sleep(self) -> None:
        self.num_sleeps += 1
        self.now += 2.0

    def gpus(self, before: RuntimeSharing | None = None) -> SharedGpus:
        return SharedGpus(self.events, self, self, lambda: self.granted, before or RuntimeSharing())

    @property
    def claim(self) -> tuple[int, int]:
        return self.reports[-1].asked, self.reports[-1].returned


class GrantsLater(queue.SimpleQueue[Event]):
    """The turn is granted when the driver has waited for so many events."""

    def __init__(self, world: World, grants: list[Grant]) -> None:
        super().__init__()
        self._world = world
        self._grants = grants

    def get(self, block: bool = True, timeout: float | None = None) -> Event:
        if self.qsize() == 0:
            self._world.now += 5.0
            self._world.granted = self._grants.pop(0)
            return TurnChanged()
        return super().get(block, timeout)


def test_it_asks_once_and_waits_until_the_turn_is_granted() -> None:
    world = World()
    world.events = GrantsLater(world, [Grant(0, 0), Grant(1, 0)])
    other = WeightsLost("something else happened")
    world.events.put(other)
    gpus = world.gpus()
    assert gpus.are_away
    world.activity(RuntimeActivity.PREPARE_MODEL)
    gpus.need()
    assert not gpus.are_away
    assert [(one.asked, one.returned) for one in world.reports] == [(1, 0)]
    preparing = RuntimeActivity.PREPARE_MODEL
    assert world.activities == [preparing, RuntimeActivity.WAIT_FOR_TURN, preparing], "a warm start follows"
    assert world.events.get() is other, "events about something else are kept"


def test_a_turn_that_nobody_recalls_is_kept_and_nothing_sleeps() -> None:
    world = World(Grant(1, 0))
    gpus = world.gpus()
    for _ in range(3):
        gpus.need()
        gpus.idle(world.sleep)
    assert (world.num_sleeps, world.claim) == (0, (1, 0))
    assert world.activities == []


def test_a_recalled_turn_is_returned_when_everything_sleeps_and_not_before() -> None:
    world = World(Grant(1, 1))
    gpus = world.gpus()
    gpus.need()
    claims: list[tuple[int, int]] = []
    gpus.idle(lambda: claims.append(world.claim))
    assert claims == [(1, 0)], "it sleeps before it says so"
    assert world.claim == (1, 1) and gpus.are_away
    gpus.idle(world.sleep)
    assert world.num_sleeps == 0, "it sleeps already"
    world.events = GrantsLater(world, [Grant(2, 1)])
    gpus = world.gpus(world.reports[-1])
    gpus.need()
    assert world.claim == (2, 1)


def test_a_recall_that_comes_while_it_is_idle_is_followed() -> None:
    world = World(Grant(1, 0))
    gpus = world.gpus()
    gpus.need()
    gpus.idle(world.sleep)
    world.granted = Grant(1, 1)
    gpus.idle(world.sleep)
    assert (world.num_sleeps, world.claim) == (1, (1, 1))


def test_another_session_of_the_attempt_keeps_the_turn_that_the_first_one_had() -> None:
    world = World(Grant(3, 2))
    gpus = world.gpus(RuntimeSharing(asked=3, returned=2))
    gpus.need()
    assert world.reports == [] and not gpus.are_away


def test_a_pod_that_has_to_stop_does_not_wait_for_its_turn() -> None:
    world = World()
    world.events.put(StopRequested())
    with pytest.raises(Interrupted):
        world.gpus().need()


def test_waits_are_no_part_of_the_measured_step_and_the_first_step_is_left_out() -> None:
    world = World()
    world.events = GrantsLater(world, [Grant(1, 1), Grant(2, 2), Grant(3, 3)])
    gpus = world.gpus()
    for _ in range(3):
        gpus.need()  # Waits for 5 s.
        world.now += 10.0
        assert gpus.waited_s == 5.0
        gpus.idle(world.sleep)  # Takes 2 s.
        world.now += 30.0
        gpus.step_done()
    report = world.reports[-1]
    assert (report.num_steps, report.step_s, report.turn_s, report.wait_s, report.switch_s) == (2, 42.0, 10.0, 5.0, 2.0)
    assert world.metrics == {
        "sharing/turn_s": 10.0,
        "sharing/wait_s": 5.0,
        "sharing/switch_s": 2.0,
        "sharing/num_turns": 3.0,
    }
