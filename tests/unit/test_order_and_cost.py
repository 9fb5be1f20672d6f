"""What a run of the tests does beside running them: their random order, the cost of each file, and failures at once."""

import io
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from _pytest._io import TerminalWriter
from _pytest.reports import TestReport
from _pytest.terminal import TerminalReporter

from tests.conftest import group, shuffled
from tests.cost import Cost, Process, Tree, by_file, exceeded
from tests.failures import AtOnce
from tests.yardstick import Yardstick

ITEMS: list[Any] = [SimpleNamespace(path=Path(f"test_{file}.py"), name=name) for file in "abcd" for name in range(5)]


def names(items: list[Any]) -> list[tuple[Path, int]]:
    return [(item.path, item.name) for item in items]


def test_a_seed_gives_every_process_the_same_order_of_all_tests() -> None:
    once, again, other = (names(shuffled(ITEMS, seed)) for seed in (1, 1, 2))
    assert once == again != other
    assert sorted(once) == sorted(names(ITEMS)) != once


def test_tests_of_a_file_stay_together_because_they_share_fixtures() -> None:
    files = [path for path, _ in groupby(item.path for item in shuffled(ITEMS, 1))]
    assert len(files) == 4


def test_only_parts_of_the_contract_tests_stay_in_one_process() -> None:
    parts = {
        "tests/contract/engines/test_a.py::one": "tests/contract/engines",
        "tests/contract/engines/test_b.py::two[x::y]": "tests/contract/engines",
        "tests/contract/profiling/test_c.py::one": "tests/contract/engines",
        "tests/e2e/test_job.py::one": "tests/e2e/test_job.py",
        "tests/unit/sim/test_engine.py::one": "tests/unit/sim/test_engine.py",
    }
    assert {nodeid: group(nodeid) for nodeid in parts} == parts


def test_a_file_costs_what_its_tests_cost() -> None:
    cost = by_file({"test_a.py::one": 1.5, "test_a.py::Two::three[a::b]": 2.0, "test_b.py::one": 0.25})
    assert cost == {"test_a.py": 3.5, "test_b.py": 0.25}


def test_a_failure_is_shown_when_it_happens(pytestconfig: pytest.Config) -> None:
    shown = io.StringIO()
    with mock.patch.object(pytestconfig, "get_terminal_writer", return_value=TerminalWriter(shown)):
        plugin = AtOnce(TerminalReporter(pytestconfig, shown))
        for outcome in ("passed", "failed"):
            plugin.pytest_runtest_logreport(TestReport(f"a.py::{outcome}", ("a.py", 1, ""), {}, outcome, "so", "call"))
    assert "a.py::failed (call)" in shown.getvalue()
    assert "so" in shown.getvalue().splitlines()
    assert "passed" not in shown.getvalue()


ROOT = Process(started=0, pid=10, parent=1, own_s=5.0, waited_s=0.0)


def test_what_ends_together_with_its_parent_is_counted_once() -> None:
    """A container and its keeper, for which the server waits: the server gets the time of both."""
    tree = Tree(ROOT)
    keeper, main = Process(1, 11, 10, 0.5, 0.0), Process(2, 12, 11, 7.0, 0.0)
    assert tree.update([ROOT, keeper, main]).cpu_s == 7.5
    assert tree.update([ROOT._replace(waited_s=7.5)]).cpu_s == 7.5


def test_what_nobody_waited_for_stays_counted() -> None:
    tree = Tree(ROOT)
    parent, orphan = Process(1, 11, 10, 0.5, 0.0), Process(2, 12, 11, 7.0, 0.0)
    tree.update([ROOT, parent, orphan])
    assert tree.update([ROOT._replace(waited_s=0.5), orphan._replace(parent=1, own_s=8.0)]).cpu_s == 8.5
    assert tree.update([ROOT._replace(waited_s=0.5)]).cpu_s == 8.5
    killed_at_once = Tree(ROOT)
    killed_at_once.update([ROOT, parent, orphan])
    assert killed_at_once.update([ROOT._replace(waited_s=0.5)]).cpu_s == 7.5, "the parent had not waited for it"


def test_another_process_of_the_same_number_is_another_process() -> None:
    tree = Tree(ROOT)
    tree.update([ROOT, Process(1, 11, 10, 2.0, 0.0)])
    cost = tree.update([ROOT._replace(waited_s=2.0), Process(9, 11, 10, 1.0, 0.0)])
    assert cost == (3.0, 2)


def test_between_two_samples_of_all_a_child_counts_as_it_did() -> None:
    """It may have ended meanwhile, and its parent have waited for it."""
    tree = Tree(ROOT)
    tree.update([ROOT, Process(1, 11, 10, 2.0, 0.0)])
    ended = ROOT._replace(own_s=5.25, waited_s=2.5)
    assert tree.update_root(ended) == (2.25, 1)
    assert tree.update([ended]) == (2.75, 1)


def test_a_machine_that_is_half_as_fast_may_take_twice_as_long() -> None:
    budget = {"cpu_s": 1_000.0, "yardstick_s": 0.02, "num_processes": 10}
    assert exceeded(Cost(1_900.0, 10), 0.04, budget) == []
    assert exceeded(Cost(1_900.0, 10), 0.02, budget) == ["cpu_s: 1900 of 1000"]
    assert exceeded(Cost(2_100.0, 11), 0.04, budget) == ["cpu_s: 2100 of 2000", "num_processes: 11 of 10"]


def test_the_yardstick_is_work() -> None:
    yardstick = Yardstick()
    assert yardstick.mean_s > 0.0
    yardstick.stop()


def test_processes_of_others_are_not_counted() -> None:
    assert Tree(ROOT).update([ROOT, Process(1, 11, 3, 9.0, 0.0)]) == (0.0, 0)
