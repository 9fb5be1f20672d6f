"""Which containers start again, and after how long."""

import pytest

from longshore_devcluster.kubelet.restart import Backoff, should_restart


@pytest.mark.parametrize(
    ("policy", "code", "restarts"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 137, True),
        ("Never", 1, False),
    ],
)
def test_restart_policy(policy: str, code: int, restarts: bool) -> None:
    assert should_restart(policy, code) is restarts


def test_delay_doubles_from_ten_seconds_to_five_minutes_after_a_first_immediate_restart() -> None:
    backoff = Backoff()

    assert [backoff.next_delay_s(ran_s=1) for _ in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]


def test_ten_good_minutes_reset_the_delay() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.next_delay_s(ran_s=1)

    assert [backoff.next_delay_s(ran_s=600), backoff.next_delay_s(ran_s=1)] == [0, 10]


def test_base_scales_everything() -> None:
    backoff = Backoff(base_s=0.1)

    assert [round(backoff.next_delay_s(ran_s=0), 6) for _ in range(7)] == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.0]
