"""A pod that is asked to stop divides its grace period: updates, then the checkpoint, then what is to be sent."""

import os
import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.api.contract import ExitCode
from longshore_runtime import __main__ as program
from longshore_runtime.errors import Interrupted
from longshore_runtime.session.ending import Ending
from longshore_runtime.stop import Stop
from longshore_runtime.telemetry.background import CLOSE_LIMIT_S


class Clock:
    """A clock that stands."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("grace_s", [0.0, 120.0])
def test_nobody_is_interrupted_before_the_pod_is_asked_to_stop(grace_s: float) -> None:
    clock = Clock()
    stop = Stop(grace_s, clock)
    clock.now_s += 10_000.0
    stop.require_none()
    stop.require_time_to_update()
    assert not stop.is_asked


def test_an_update_may_end_until_two_fifths_of_the_grace_period_are_over() -> None:
    clock = Clock()
    stop = Stop(120.0, clock)
    stop.ask()
    with pytest.raises(Interrupted, match="asked to stop"):
        stop.require_none()
    clock.now_s += 47.9
    stop.require_time_to_update()
    clock.now_s += 0.2
    with pytest.raises(Interrupted, match="the update takes too long"):
        stop.require_time_to_update()


@given(grace_s=st.integers(0, 600), passed_s=st.floats(0, 1_000))
def test_parts_end_within_the_grace_period_and_begin_when_earlier_ones_must_be_over(
    grace_s: int, passed_s: float
) -> None:
    clock = Clock()
    stop = Stop(grace_s, clock)
    stop.ask()
    clock.now_s += passed_s
    stop.ask()  # A second signal gives no more time.
    assert 0.0 <= stop.save_limit_s <= stop.close_limit_s
    assert stop.close_limit_s == 0.0 or passed_s + stop.close_limit_s < grace_s
    if passed_s < 0.4 * grace_s:
        assert stop.save_limit_s > 0.3 * grace_s, "an update that has just ended can be saved"


def test_a_session_ends_its_actors_before_it_waits_for_services() -> None:
    ending, ended = Ending(Stop()), list[str]()
    ending.parts.callback(ended.append, "actors")
    ending.reports.callback(ended.append, "services")
    ending.close()
    assert ended == ["actors", "services"]


def test_services_are_closed_although_an_actor_cannot_be_ended() -> None:
    ending, ended = Ending(Stop()), list[str]()

    def fails() -> None:
        raise RuntimeError("it hangs")

    ending.parts.callback(fails)
    ending.reports.callback(ended.append, "services")
    with pytest.raises(RuntimeError, match="it hangs"):
        ending.close()
    assert ended == ["services"]


def test_services_have_one_limit_together_which_begins_when_the_actors_have_ended() -> None:
    ending, left_s, done = Ending(Stop()), list[float](), threading.Event()
    ending.parts.callback(done.wait, 0.05)
    ending.reports.callback(lambda: left_s.append(ending.left_s()))
    ending.reports.callback(done.wait, 0.05)
    ending.reports.callback(lambda: left_s.append(ending.left_s()))
    ending.close()
    first, second = left_s
    assert first <= CLOSE_LIMIT_S
    assert second <= first - 0.05


def test_services_have_their_time_at_the_end_of_a_job_however_short_its_grace_period() -> None:
    ending, left_s = Ending(Stop(grace_s=0.0)), list[float]()
    ending.reports.callback(lambda: left_s.append(ending.left_s()))
    ending.close()
    assert left_s[0] > 0.9 * CLOSE_LIMIT_S


def test_services_have_less_time_where_little_of_the_grace_period_is_left() -> None:
    stop = Stop(grace_s=10.0)
    stop.ask()
    ending, left_s = Ending(stop), list[float]()
    ending.reports.callback(lambda: left_s.append(ending.left_s()))
    ending.close()
    assert left_s[0] <= 9.0


class RaisesNothing:
    """A callback in which Python ignores what the handler of a signal raises, as in those of imports."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_pod_that_is_asked_to_stop_before_its_component_has_begun_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process of a container gets no signal that it has no handler for, and would go on."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(program, "configure_logging", RaisesNothing)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert program.main([]) == 2
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == [ExitCode.INTERRUPTED]
