"""What each test costs: CPU seconds and processes of everything that it starts, and a budget for the whole run.

Wall-clock time says more about the machine than about the tests, so the budget (`cost_budget.json`) is in processes and
in CPU seconds, and these in proportion to what a fixed piece of work takes meanwhile (`tests/yardstick.py`). A run of
all tests that leaps past the budget fails; a run of a part only reports.

A thread samples `/proc`. A process belongs to the run if its parent does when it is first seen, so daemons are
counted. A process that ends between two samples is not counted as one, but its CPU time is: its parent has it among
the time of its children. Of a process that was counted and has ended, what no ancestor has got is added.
"""

import contextlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.yardstick import Yardstick

BUDGET: Final = Path(__file__).parent / "cost_budget.json"
SAMPLE_S: Final = 0.5
MOMENT_S: Final = 0.2
NUM_SHOWN: Final = 25
SHOWN_FROM_S: Final = 1.0
PROPERTY: Final = "cpu_s"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """A process; `waited_s` are the CPU seconds of the children that it has waited for."""

    started: int
    pid: int
    parent: int
    own_s: float
    waited_s: float


class Cost(NamedTuple):
    """CPU seconds, and processes that lived long enough to be seen."""

    cpu_s: float
    num_processes: int


def pids() -> set[int]:
    """The numbers of all processes of the machine."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - again and again


def processes(of: Iterable[int]) -> Iterator[Process]:
    """Those of these processes that have not ended."""
    for pid in of:
        with contextlib.suppress(OSError):
            yield process(pid)


def process(pid: int) -> Process:
    """One of them; raises OSError where there is none."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - every process of the machine, again and again
        fields = file.read().rpartition(b") ")[2].split(None, 20)
    spent_s, waited_s = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return Process(int(fields[19]), pid, int(fields[1]), spent_s / _TICKS_PER_S, waited_s / _TICKS_PER_S)


class Tree:
    """A process and everything that descends from it, including what outlives its parent."""

    def __init__(self, root: Process) -> None:
        self._known = {root.pid: root}
        self._at_start_s = root.own_s + root.waited_s
        self._orphans_s = 0.0
        self._num_processes = 0

    @property
    def pids(self) -> Set[int]:
        """Those of the process and of everything that descended from it when it was last looked at."""
        return self._known.keys()

    def update(self, seen: Iterable[Process]) -> Cost:
        """Take a sample; returns the cost since the start."""
        now = {one.pid: one for one in seen}
        ended = {pid: one for pid, one in self._known.items() if pid not in now or now[pid].started != one.started}
        for pid in ended:
            del self._known[pid]
        lost_s: Counter[int] = Counter()
        for one in ended.values():
            lost_s[_first_not_in(ended, one)] += one.own_s + one.waited_s  # type: ignore[assignment]
        for ancestor, spent_s in lost_s.items():
            waited_s = now[ancestor].waited_s - self._known[ancestor].waited_s if ancestor in self._known else 0.0
            self._orphans_s += max(0.0, spent_s - waited_s)
        for one in sorted(now.values()):  # Parents come before their children.
            if one.pid in self._known or one.parent in self._known:
                self._num_processes += one.pid not in self._known
                self._known[one.pid] = one
        return self._cost()

    def update_root(self, root: Process) -> Cost:
        """The same where only the process itself is looked at: what descends from it counts as it did."""
        self._known[root.pid] = root._replace(waited_s=self._known[root.pid].waited_s)
        return self._cost()

    def _cost(self) -> Cost:
        cpu_s = sum(one.own_s + one.waited_s for one in self._known.values())
        return Cost(cpu_s + self._orphans_s - self._at_start_s, self._num_processes)


def _first_not_in(ended: Mapping[int, Process], process: Process) -> int:
    """The nearest ancestor that still lives: it has the time of what ended below it, as far as that was waited for."""
    while process.parent in ended:
        process = ended[process.parent]
    return process.parent


class Meter:
    """Samples the tree of this process."""

    def __init__(self, sample_s: float = SAMPLE_S) -> None:
        self._sample_s = sample_s
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._tree = Tree(process(os.getpid()))
        self._others: set[int] = set()
        """Processes of others: what they are once, they stay. A number is not given again between two samples."""
        self._looked_s = time.monotonic()
        threading.Thread(target=self._sample, name="cost", daemon=True).start()

    def read(self) -> Cost:
        """The cost so far."""
        with self._lock:
            return self._look()

    def read_quickly(self) -> Cost:
        """The same, without processes that began since the last sample if there were none before, or a moment ago."""
        with self._lock:
            if len(self._tree.pids) == 1:
                return self._tree.update([process(os.getpid())])
            if time.monotonic() - self._looked_s < MOMENT_S:
                return self._tree.update_root(process(os.getpid()))
            return self._look()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()

    def _look(self) -> Cost:
        self._looked_s = time.monotonic()
        found = pids()
        cost = self._tree.update(processes(found - self._others))
        self._others = found - self._tree.pids
        return cost

    def _sample(self) -> None:
        while not self._ended.wait(self._sample_s):
            self.read()


def by_file(cpu_s: dict[str, float]) -> Counter[str]:
    """The cost of each file of tests, from that of each test."""
    total: Counter[str] = Counter()
    for nodeid, spent_s in cpu_s.items():
        total[nodeid.partition("::")[0]] += spent_s  # type: ignore[assignment]
    return total


def exceeded(total: Cost, yardstick_s: float, budget: Mapping[str, float]) -> list[str]:
    """What exceeds the budget, on a machine on which the yardstick takes this long."""
    allowed = {
        "cpu_s": budget["cpu_s"] * yardstick_s / budget["yardstick_s"],
        "num_processes": budget["num_processes"],
    }
    spent = total._asdict()
    return [f"{name}: {spent[name]:.0f} of {most:.0f}" for name, most in allowed.items() if spent[name] > most]


class CostPlugin:
    """Charges each test with what was spent since the test before it ended, shared fixtures included.

    With several test processes each measures its own tests; the one that they descend from measures the total.
    """

    def __init__(self, table: str | None = None, yardstick: Yardstick | None = None) -> None:
        """`yardstick`: where the total is measured."""
        self._table, self._yardstick = table, yardstick
        self._meter = Meter()
        self._spent_s = 0.0
        self._cpu_s: dict[str, float] = {}
        self.exceeded: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Where the test runs: the figure travels with the last of the test's reports."""
        report = yield
        if report.when == "teardown":
            spent_s = self._meter.read_quickly().cpu_s
            report.user_properties.append((PROPERTY, spent_s - self._spent_s))
            self._spent_s = spent_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Where reports are collected."""
        for name, value in report.user_properties:
            if name == PROPERTY and isinstance(value, float):
                self._cpu_s[report.nodeid] = value

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run of all tests that leaps past its budget."""
        self._meter.stop()
        if self._yardstick is None:
            return
        self._yardstick.stop()
        budget = json.loads(BUDGET.read_text())
        if len(self._cpu_s) < budget["num_tests"]:
            return
        self.exceeded = exceeded(self._meter.read(), self._yardstick.mean_s, budget)
        if self.exceeded and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what the run cost, and which files and tests cost most."""
        total = self._meter.read()
        terminalreporter.section("cost")
        terminalreporter.line(f"{total.cpu_s:.0f} CPU s, {total.num_processes} processes of more than {SAMPLE_S} s")
        if self._yardstick is not None:
            terminalreporter.line(f"{1_000 * self._yardstick.mean_s:.1f} ms of CPU time for the yardstick")
        for costs in (by_file(self._cpu_s), self._cpu_s):
            for name, cpu_s in sorted(costs.items(), key=lambda item: -item[1])[:NUM_SHOWN]:
                if cpu_s >= SHOWN_FROM_S:
                    terminalreporter.line(f"{cpu_s:7.1f} CPU s  {name}")
        if self._table is not None:
            Path(self._table).write_text(json.dumps(self._cpu_s, indent=1))
        for figure in self.exceeded:
            terminalreporter.line(f"FAILED: over the budget of {BUDGET.name}: {figure}", red=True)
