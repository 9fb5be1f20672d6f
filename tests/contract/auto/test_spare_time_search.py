"""The search of strategy Auto in a process of its own: it answers as it would here, and its end is known."""

import multiprocessing
from multiprocessing.process import BaseProcess

import psutil
import pytest

from longshore_runtime.elastic.auto_factors import SearchFailed, SpareTimeSearch
from tests.unit.sim.test_auto import question

LIMIT_S = 120.0


def process() -> BaseProcess:
    """That of the search."""
    (found,) = [one for one in multiprocessing.active_children() if one.name == "search"]
    return found


def test_it_answers_as_it_would_here() -> None:
    asked = question(900)
    search = SpareTimeSearch(asked)
    process().join(LIMIT_S)
    assert search.done()
    assert search.result() == asked.answer()


def test_a_search_that_is_killed_has_failed() -> None:
    search = SpareTimeSearch(question(900))
    running = process()
    running.kill()
    running.join(LIMIT_S)
    assert search.done()
    with pytest.raises(SearchFailed, match="exit code -9"):
        search.result()


def test_a_search_that_is_stopped_leaves_no_process() -> None:
    search = SpareTimeSearch(question(900))
    pid = process().pid
    assert pid is not None
    search.stop()
    assert not psutil.pid_exists(pid)
