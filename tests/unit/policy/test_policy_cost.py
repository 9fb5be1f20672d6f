"""What deciding costs, in calls and not in seconds: a round of n events takes no more than n log n of them."""

import sys
from types import FrameType

import pytest
from benchmarks.policy_cost import CASES, Recording, Replayed, RewardBacklog, growth

NUM_REQUESTS = (100, 2_000)


def num_calls(recording: Replayed) -> int:
    """Calls of functions, Python's own and built-in ones, in a replay."""
    count = 0

    def count_calls(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_calls)
    try:
        recording.replay()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", CASES)
def test_decisions_take_no_more_than_n_log_n_calls(name: str) -> None:
    recordings = [Recording(CASES[name], num_requests) for num_requests in NUM_REQUESTS]
    assert growth([len(one.calls) for one in recordings], [num_calls(one) for one in recordings]) <= 1


def test_rewards_that_fall_behind_take_no_more_than_n_log_n_calls() -> None:
    backlogs = [RewardBacklog(num_requests) for num_requests in NUM_REQUESTS]
    assert growth([one.num_events for one in backlogs], [num_calls(one) for one in backlogs]) <= 1
