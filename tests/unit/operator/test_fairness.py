"""Whose turn it is: no namespace waits for the queue of another, and no job is looked at more often than its share."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_operator.fairness import Bucket, FairQueue

VICTIM = ("quiet", "job")


def noisy(count: int) -> list[tuple[str, str]]:
    return [("noisy", f"job-{index}") for index in range(count)]


def turn(queue: FairQueue, cost_s: float = 0.02) -> tuple[str, str] | None:
    """One pass from its beginning to its end."""
    key = queue.pop()
    if key is not None:
        queue.done(key, cost_s)
    return key


def test_a_namespace_that_was_quiet_is_next_however_long_the_queue_of_another_is() -> None:
    queue = FairQueue(max_running=4)
    for key in noisy(200):
        queue.add(key)
    for _ in range(50):
        turn(queue)
    queue.add(VICTIM)
    assert turn(queue) == VICTIM


def test_a_small_namespace_is_among_the_first_two_when_everything_is_due_at_once() -> None:
    queue = FairQueue(max_running=4)
    for key in [*noisy(200), VICTIM]:
        queue.add(key)
    assert VICTIM in [turn(queue) for _ in range(2)]


def test_jobs_of_a_namespace_take_turns() -> None:
    queue = FairQueue(max_running=1)
    for key in noisy(3):
        queue.add(key)
    seen = []
    for _ in range(9):
        key = queue.pop()
        assert key is not None
        seen.append(key)
        queue.done(key, 1.0)
        queue.add(key)
    assert Counter(seen) == dict.fromkeys(noisy(3), 3)


def test_a_namespace_has_no_more_slots_than_it_may() -> None:
    queue = FairQueue(max_running=2)
    for key in noisy(5):
        queue.add(key)
    running = [queue.pop(), queue.pop()]
    assert None not in running
    assert queue.pop() is None
    queue.add(VICTIM)
    assert queue.pop() == VICTIM
    queue.done(noisy(1)[0], 1.0)
    assert queue.pop() is not None
    assert queue.pop() is None, "one slot was freed"


def test_a_namespace_with_costly_passes_has_fewer_of_them() -> None:
    queue = FairQueue(max_running=1)
    cheap, costly = ("cheap", "job"), ("costly", "job")
    seen: Counter[tuple[str, str]] = Counter()
    for key in (cheap, costly):
        queue.add(key)
    for _ in range(110):
        key = queue.pop()
        assert key is not None
        seen[key] += 1
        queue.done(key, 1.0 if key == costly else 0.1)
        queue.add(key)
    assert seen[cheap] == pytest.approx(10 * seen[costly], rel=0.2)


def test_nobody_saves_turns_by_being_quiet() -> None:
    queue = FairQueue(max_running=1)
    queue.add(VICTIM)
    turn(queue)
    for key in noisy(50):
        queue.add(key)
    for _ in range(40):
        turn(queue, cost_s=1.0)
    served = []
    queue.add(VICTIM)
    for _ in range(10):
        key = queue.pop()
        assert key is not None
        served.append(key)
        queue.done(key, 1.0)
        if key == VICTIM:
            queue.add(VICTIM)
    assert served.count(VICTIM) <= 6


def test_a_job_that_is_taken_out_has_no_turn_and_costs_the_others_none() -> None:
    queue = FairQueue(max_running=1)
    first, second = noisy(2)
    for key in (first, VICTIM, second):
        queue.add(key)
    assert queue.remove(first)
    assert queue.remove(VICTIM)
    assert not queue.remove(VICTIM), "it does not wait any more"
    assert turn(queue) == second
    assert turn(queue) is None
    queue.add(VICTIM)
    assert turn(queue) == VICTIM


def test_a_namespace_whose_last_job_is_removed_while_another_runs_gets_turns_again() -> None:
    queue = FairQueue(max_running=2)
    first, second = noisy(2)
    queue.add(first)
    assert queue.pop() == first
    queue.add(second)
    assert queue.remove(second)
    queue.done(first, 0.0)
    assert queue.pop() is None
    queue.add(second)
    assert turn(queue) == second


@pytest.mark.parametrize("last_is_removed", [False, True])
def test_nothing_is_kept_of_namespaces_when_nothing_is_left_to_do(last_is_removed: bool) -> None:
    """Namespaces come and go for as long as the operator runs."""
    queue = FairQueue(max_running=1)
    for number in range(5):
        queue.add((f"namespace-{number}", "job"))
        queue.add((f"namespace-{number}", "another"))
    for number in range(10 - last_is_removed):
        assert queue._tenants, number
        turn(queue, cost_s=float(number))
    if last_is_removed:
        assert queue.remove(("namespace-4", "another"))
    assert not queue._tenants
    assert queue.pop() is None


def test_after_a_quiet_moment_nobody_is_behind() -> None:
    queue = FairQueue(max_running=1)
    queue.add(VICTIM)
    turn(queue, cost_s=100.0)
    first, second = noisy(2)
    for key in (VICTIM, first, second):
        queue.add(key)
    assert [turn(queue, cost_s=1.0) for _ in range(3)] == [VICTIM, first, second]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), max_size=60),
    st.integers(1, 3),
    st.floats(0, 5),
)
def test_every_job_that_waits_has_its_turn_once(
    jobs: list[tuple[str, int, bool]], max_running: int, cost_s: float
) -> None:
    queue = FairQueue(max_running)
    waiting: set[tuple[str, str]] = set()
    seen = []
    for namespace, number, is_removed in jobs:
        key = (namespace, str(number))
        if is_removed:
            assert queue.remove(key) == (key in waiting)
            waiting.discard(key)
            continue
        if key in waiting:
            seen.append(turn(queue, cost_s))
            waiting.discard(seen[-1])
        if key not in waiting:
            queue.add(key)
            waiting.add(key)
    assert len(queue) == len(waiting)
    rest = [turn(queue, cost_s) for _ in range(len(waiting))]
    assert set(rest) == waiting
    assert queue.pop() is None
    assert queue.num_running == 0


class TestBucket:
    @pytest.mark.parametrize("begin_s", [0.0, 1e5])
    def test_a_burst_is_free_and_the_long_run_is_not(self, begin_s: float) -> None:
        bucket = Bucket(burst=3, per_s=2.0, now_s=begin_s)
        for _ in range(3):
            assert bucket.wait_s(begin_s) == 0
            bucket.take(begin_s)
        assert bucket.wait_s(begin_s) == pytest.approx(0.5)
        assert bucket.wait_s(begin_s + 0.5) == 0

    def test_what_is_taken_unasked_is_taken_from_what_there_is_by_then(self) -> None:
        bucket = Bucket(burst=2, per_s=1.0, now_s=0.0)
        bucket.take(0.0, cost=2.0)
        bucket.take(10.0, cost=2.0)
        assert bucket.wait_s(10.0) == pytest.approx(1.0)

    def test_what_cost_more_is_waited_for_longer(self) -> None:
        bucket = Bucket(burst=1, per_s=1.0, now_s=0.0)
        bucket.take(0.0, cost=5.0)
        assert bucket.wait_s(0.0) == pytest.approx(5.0)

    @given(st.lists(st.floats(0, 100), max_size=50))
    def test_it_never_happens_more_often_than_burst_and_rate_allow(self, pauses_s: list[float]) -> None:
        bucket, now_s, count = Bucket(burst=5, per_s=1.0, now_s=0.0), 0.0, 0
        for pause_s in pauses_s:
            now_s += pause_s
            if bucket.wait_s(now_s) == 0:
                bucket.take(now_s)
                count += 1
        assert count <= 5 + now_s + 1e-6
