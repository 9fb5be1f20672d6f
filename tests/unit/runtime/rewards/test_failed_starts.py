"""How often workers may fail to start, and when the next one is tried."""

from longshore_runtime.rewards.workers import FailedStarts


def test_failures_at_one_place_are_counted_until_a_worker_is_ready() -> None:
    starts = FailedStarts(first_wait_s=5.0)
    assert [starts.failed(0, "node"), starts.failed(1, "node"), starts.failed(0, "node")] == [1, 1, 2]
    starts.succeeded(0)
    assert starts.failed(0, "node") == 1


def test_a_place_that_moves_to_another_node_starts_from_zero() -> None:
    starts = FailedStarts(first_wait_s=5.0)
    assert [starts.failed(0, node) for node in ("a", "a", "b", "b", "a")] == [1, 2, 1, 2, 1]


def test_a_worker_that_died_before_it_named_its_node_counts_as_on_the_same_node() -> None:
    starts = FailedStarts(first_wait_s=5.0)
    assert [starts.failed(0, node) for node in (None, "a", None, "a", "b")] == [1, 2, 3, 4, 1]


def test_each_failure_in_a_row_doubles_the_wait() -> None:
    starts = FailedStarts(first_wait_s=5.0)
    waits_s = [starts.wait_s(0)]
    for _ in range(2):
        starts.failed(0, "node")
        waits_s.append(starts.wait_s(0))
    assert waits_s == [0.0, 5.0, 10.0]
    starts.failed(0, "another")
    assert starts.wait_s(0) == 5.0
    starts.succeeded(0)
    assert starts.wait_s(0) == 0.0
