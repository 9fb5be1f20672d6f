"""How many reward pods there should be, step by step."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.policy.reward_pods import (
    CALM_S,
    GROW_PAUSE_S,
    RewardPodLimits,
    RewardPods,
    RewardPressure,
    desired_pods,
    is_news,
    next_look_s,
)

LIMITS = RewardPodLimits(minimum=1, maximum=8, workers_per_pod=2)


def pressure(queue: int, wait: float, workers: int, busy: int) -> RewardPressure:
    return RewardPressure(queue, wait, workers, busy)


@dataclass
class Job:
    """Asks the policy as the operator does: with what the last answer was."""

    pods: RewardPods = field(default_factory=lambda: RewardPods(1))
    limits: RewardPodLimits = LIMITS

    def at(self, now_s: float, now: RewardPressure | None) -> RewardPods:
        self.pods = desired_pods(self.pods, self.limits, now, now_s)
        repeated = desired_pods(self.pods, self.limits, now, now_s)
        assert repeated == replace(self.pods, reason=""), "the answer is no fixed point"
        return self.pods


def test_the_table_of_the_explanation() -> None:
    """docs/explanation/reward-scheduler.md: pods 1, maxPods 4, two workers per pod."""
    job = Job(limits=RewardPodLimits(1, 4, 2))
    assert job.at(0, pressure(0, 0, 2, 2)).count == 1
    assert job.at(10, pressure(5, 4, 2, 2)).count == 1
    grown = job.at(12, pressure(5, 6, 2, 2))
    assert (grown.count, grown.reason) == (2, "a response has waited 6 s for a worker")
    assert job.at(20, pressure(20, 14, 2, 2)).count == 2  # the pod is on its way
    assert job.at(26, pressure(20, 7, 4, 4)).count == 2  # 15 s are not over
    grown = job.at(28, pressure(20, 4, 4, 4))
    assert (grown.count, grown.reason) == (4, "20 responses wait for 4 workers")
    assert job.at(60, pressure(0, 0, 8, 3)).calm_since_s == 60
    assert job.at(90, pressure(0, 0, 8, 6)).calm_since_s is None
    assert job.at(100, pressure(0, 0, 8, 0)).calm_since_s == 100
    shrunk = job.at(220, pressure(0, 0, 8, 0))
    assert (shrunk.count, shrunk.reason) == (3, "8 workers have had little to do for 120 s")
    assert job.at(339, pressure(0, 0, 6, 0)).count == 3
    assert job.at(340, pressure(0, 0, 6, 0)).count == 2
    assert job.at(460, pressure(0, 0, 4, 0)) == RewardPods(1, 460, None, "4 workers have had little to do for 120 s")


@pytest.mark.parametrize(
    ("now", "count"),
    [
        (pressure(1, 5.1, 4, 4), 3),  # waits for too long: one pod has a worker for it
        (pressure(1, 5.0, 4, 4), 2),
        (pressure(16, 0.0, 4, 4), 4),  # the queue is four times the workers
        (pressure(15, 0.0, 4, 4), 2),
        (pressure(900, 60.0, 4, 4), 4),  # never more than doubled
        (
            pressure(900, 60.0, 4, 3),
            2,
        ),  # a worker is idle: maxConcurrency holds the responses, more pods would not help
        (pressure(900, 60.0, 3, 3), 2),  # a worker of the two pods is still to come
        (pressure(900, 60.0, 0, 0), 2),
        (None, 2),
    ],
)
def test_pods_are_added_when_responses_wait_for_want_of_workers(now: RewardPressure | None, count: int) -> None:
    assert desired_pods(RewardPods(2), LIMITS, now, 0.0).count == count


def test_growth_starts_from_no_pod_where_the_coordinator_scores() -> None:
    limits = RewardPodLimits(0, 4, 2)
    assert desired_pods(RewardPods(0), limits, pressure(9, 9.0, 2, 2), 0.0).count == 1


def test_limits_hold_at_once_and_without_news() -> None:
    assert desired_pods(RewardPods(0), LIMITS, None, 7.0) == RewardPods(1, 7.0)
    assert desired_pods(RewardPods(9), LIMITS, None, 7.0) == RewardPods(8, 7.0)


def test_a_number_that_is_fixed_never_changes() -> None:
    limits = RewardPodLimits(2, 2, 2)
    assert desired_pods(RewardPods(2), limits, pressure(900, 60.0, 4, 4), 0.0) == RewardPods(2)
    assert desired_pods(RewardPods(2), limits, pressure(0, 0.0, 4, 0), 10.0**6) == RewardPods(2)


def test_it_is_looked_at_again_when_a_pause_or_a_calm_ends() -> None:
    pressed, calm = pressure(900, 60.0, 4, 4), pressure(0, 0.0, 4, 0)
    assert next_look_s(RewardPods(2, 10.0), LIMITS, pressed) == 10.0 + GROW_PAUSE_S
    assert next_look_s(RewardPods(2, 10.0, 20.0), LIMITS, calm) == 20.0 + CALM_S
    assert next_look_s(RewardPods(8, 10.0), LIMITS, pressed) is None
    assert next_look_s(RewardPods(1, 10.0), LIMITS, calm) is None
    assert next_look_s(RewardPods(2, 10.0), LIMITS, None) is None


@pytest.mark.parametrize(
    ("after", "is_news_expected"),
    [
        (pressure(10, 4.0, 4, 4), False),
        (pressure(12, 4.9, 4, 4), False),
        (pressure(13, 4.0, 4, 4), True),
        (pressure(0, 4.0, 4, 4), True),
        (pressure(10, 5.1, 4, 4), True),
        (pressure(10, 4.0, 5, 4), True),
        (pressure(10, 4.0, 4, 3), True),
    ],
)
def test_only_what_moved_by_a_quarter_is_news(after: RewardPressure, is_news_expected: bool) -> None:
    assert is_news(pressure(10, 4.0, 4, 4), after) is is_news_expected
    assert is_news(None, after)


# Properties

LIMIT = st.builds(
    lambda low, more, workers: RewardPodLimits(low, low + more, workers),
    st.integers(0, 8),
    st.integers(0, 40),
    st.integers(1, 8),
)
PRESSURE = st.builds(
    lambda queue, wait, workers, busy: pressure(queue, wait, workers, min(busy, workers)),
    st.integers(0, 400),
    st.floats(0, 300),
    st.integers(0, 100),
    st.integers(0, 100),
)
TIME = st.none() | st.floats(0, 1_000)
PODS = st.builds(RewardPods, st.integers(0, 60), TIME, TIME)


@given(PODS, LIMIT, st.none() | PRESSURE, st.floats(1_000, 2_000))
def test_the_limits_hold_and_a_step_is_at_most_a_doubling_or_one_down(
    pods: RewardPods, limits: RewardPodLimits, now: RewardPressure | None, now_s: float
) -> None:
    after = Job(pods, limits).at(now_s, now)
    assert limits.minimum <= after.count <= limits.maximum
    if limits.minimum <= pods.count <= limits.maximum:
        assert pods.count - 1 <= after.count <= max(1, 2 * pods.count)
        assert (after.count != pods.count) == bool(after.reason)


@given(PODS, LIMIT, PRESSURE, st.integers(0, 50), st.floats(0, 100), st.integers(0, 50))
def test_more_pressure_never_means_fewer_pods(
    pods: RewardPods, limits: RewardPodLimits, low: RewardPressure, queue: int, wait: float, busy: int
) -> None:
    high = pressure(
        low.queue_length + queue,
        low.oldest_wait_s + wait,
        low.num_workers,
        min(low.num_workers, low.num_busy + busy),
    )
    counts = [desired_pods(pods, limits, now, 1_200.0).count for now in (low, high)]
    assert counts == sorted(counts)


@given(LIMIT, st.floats(0, 120), st.integers(1, 30), st.integers(0, 40), st.data())
def test_a_constant_load_never_grows_again_what_has_shrunk(
    limits: RewardPodLimits, load_workers: float, start_s: int, backlog: int, data: st.DataObject
) -> None:
    """A fluid queue: responses arrive as fast as `load_workers` workers score them; a response takes a second."""
    pods = RewardPods(data.draw(st.integers(limits.minimum, limits.maximum)))
    joins_at = [(0.0, pods.count)]
    queue, now_s, has_shrunk = float(backlog), 0.0, False
    own = limits.workers_per_pod if limits.minimum == 0 else 0
    for _ in range(1_500):
        workers = own + limits.workers_per_pod * min(
            pods.count, [count for at_s, count in joins_at if at_s <= now_s][-1]
        )
        served = min(queue + 2 * load_workers, 2.0 * workers)
        queue += 2 * load_workers - served
        wait_s = queue / load_workers if load_workers and served == 2 * workers else 0.0
        now = pressure(int(queue), wait_s, workers, min(workers, -int(-served // 2)))
        after = desired_pods(pods, limits, now, now_s)
        if after.count > pods.count:
            assert not has_shrunk, "pods go and come under a load that does not change"
        has_shrunk = has_shrunk or after.count < pods.count
        if after.count != pods.count:
            joins_at.append((now_s + (start_s if after.count > pods.count else 0.0), after.count))
        pods, now_s = after, now_s + 2.0
    # An overload of less than 2 % takes longer than this to show in the queue.
    assert pods.count == limits.maximum or limits.workers_per_pod * pods.count + own >= 0.98 * load_workers
