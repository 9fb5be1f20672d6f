"""The search of strategy Auto in a process of its own: it answers as it would here, and its end is known."""

import os
import signal
import threading
from dataclasses import replace
from multiprocessing import resource_tracker, util
from typing import Any

import psutil
import pytest

from longshore.sim.lengths import TraceLengths
from longshore_runtime.elastic.spare_time import SearchFailed, SpareTimeSearch
from tests.unit.sim.test_auto import question

LIMIT_S = 120.0


def test_it_answers_as_it_would_here() -> None:
    asked = question(900)
    search = SpareTimeSearch(asked)
    search._process.join(LIMIT_S)
    assert search.done()
    assert search.result() == asked.answer()


class Endless:
    """A question without an answer."""

    def answer(self) -> None:
        threading.Event().wait()


def test_a_search_that_is_killed_has_failed() -> None:
    asked: Any = Endless()
    search = SpareTimeSearch(asked)
    search._process.kill()
    search._process.join(LIMIT_S)
    assert search.done()
    with pytest.raises(SearchFailed, match="exit code -9"):
        search.result()


def test_a_search_that_is_stopped_leaves_no_process() -> None:
    asked: Any = Endless()
    search = SpareTimeSearch(asked)
    pid = search._process.pid
    assert pid is not None
    search.stop()
    assert not psutil.pid_exists(pid)


class Priority:
    """A question about the process that reads it."""

    def __init__(self) -> None:
        self._when_read = os.nice(0)

    def __reduce__(self) -> Any:
        return Priority, ()

    def answer(self) -> int:
        return self._when_read


def test_it_has_the_lowest_priority_before_it_reads_its_question() -> None:
    asked: Any = Priority()
    search = SpareTimeSearch(asked)
    search._process.join(LIMIT_S)
    assert search.result() == 19  # type: ignore[comparison-overlap]


def test_a_search_begins_although_its_question_is_not_read_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a round would wait until a process of low priority has started on a busy machine."""
    resource_tracker.ensure_running()
    spawn, pids, is_late = util.spawnv_passfds, list[int](), threading.Event()

    def spawn_stopped(*arguments: Any) -> int:
        pids.append(spawn(*arguments))
        os.kill(pids[0], signal.SIGSTOP)
        return pids[0]

    def go_on() -> None:
        is_late.set()
        os.kill(pids[0], signal.SIGCONT)

    monkeypatch.setattr(util, "spawnv_passfds", spawn_stopped)
    asked = question(900)
    large = replace(asked, job=replace(asked.job, lengths=TraceLengths([(length,) for length in range(1, 100_000)])))
    watchdog = threading.Timer(LIMIT_S / 4, go_on)
    watchdog.start()
    search = SpareTimeSearch(large)
    watchdog.cancel()
    assert not is_late.is_set()
    go_on()
    search.stop()
    assert not psutil.pid_exists(pids[0])
