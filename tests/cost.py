"""CPU seconds of each test, with everything that it starts, and a budget for the whole run.

Wall-clock time says more about the machine than about the tests, so the budget is in CPU seconds, in proportion to what
a fixed piece of work takes meanwhile (`tests/yardstick.py`). A run of all tests that exceeds it fails.

A thread samples `/proc`. A process belongs to the run if its parent does when it is first seen, so daemons are counted.
The time of a process that has ended is in that of its parent, which waited for it; a daemon has no such parent, so
what it had spent when it was last seen is added.
"""

import contextlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.yardstick import Yardstick

MAX_CPU_S: Final = 4200.0
"""CPU seconds that a run of all tests may take where the yardstick takes `YARDSTICK_S`.

On a machine where it takes 8 ms, tests gain less than the yardstick: they took 3,900 CPU seconds in this proportion,
and 2,800 where it takes 31 ms.
"""
YARDSTICK_S: Final = 0.028
NUM_TESTS: Final = 5000
"""Fewer tests than these are only a part of them, which has no budget."""
SAMPLE_S: Final = 0.5
MOMENT_S: Final = 0.2
NUM_SHOWN: Final = 25
SHOWN_FROM_S: Final = 1.0
PROPERTY: Final = "cpu_s"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """A process; `spent_s` are its CPU seconds and those of the children that it has waited for."""

    started: int
    pid: int
    parent: int
    spent_s: float


def processes() -> dict[int, Process]:
    """Return all processes of the machine by their numbers."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - twice a second
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b") ")[2].split(None, 20)
                spent_s = sum(map(int, fields[11:15])) / _TICKS_PER_S
                found[int(name)] = Process(int(fields[19]), int(name), int(fields[1]), spent_s)
    return found


class Meter:
    """Samples this process and everything that descends from it, including what outlives its parent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        root = processes()[os.getpid()]
        self._known = {root.pid: root}
        self._daemons_s = -root.spent_s
        self._total_s = self._looked_s = self._own_s = 0.0
        """Figures of the last look: CPU seconds, when it was, and CPU seconds of this process."""
        threading.Thread(target=self._sample, name="cost", daemon=True).start()

    def read_s(self, max_age_s: float = 0.0) -> float:
        """Return the CPU seconds so far; those of other processes as they were at most so long ago."""
        with self._lock:
            if time.monotonic() - self._looked_s < max_age_s:
                return self._total_s + time.process_time() - self._own_s
            self._looked_s, self._own_s = time.monotonic(), time.process_time()
            now = processes()
            before, self._known = self._known, {}
            for one in before.values():
                if one.pid in now and now[one.pid].started == one.started:
                    self._known[one.pid] = now[one.pid]
                elif one.parent not in before:
                    self._daemons_s += one.spent_s
            for one in sorted(now.values()):  # Parents come before their children.
                if one.parent in self._known:
                    self._known[one.pid] = one
            self._total_s = sum(one.spent_s for one in self._known.values()) + self._daemons_s
            return self._total_s

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.read_s()


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
        self._max_s = float("inf")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Where the test runs: the figure travels with the last of the test's reports."""
        report = yield
        if report.when == "teardown":
            spent_s = self._meter.read_s(MOMENT_S)
            report.user_properties.append((PROPERTY, spent_s - self._spent_s))
            self._spent_s = spent_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Where reports are collected."""
        for name, value in report.user_properties:
            if name == PROPERTY and isinstance(value, float):
                self._cpu_s[report.nodeid] = value

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run of all tests that exceeds its budget."""
        self._meter.stop()
        if self._yardstick is not None:
            self._yardstick.stop()
            if len(self._cpu_s) >= NUM_TESTS:
                self._max_s = MAX_CPU_S * self._yardstick.mean_s / YARDSTICK_S
            if self._meter.read_s() > self._max_s and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what the run cost, and which files and tests cost most."""
        total_s = self._meter.read_s()
        terminalreporter.section("cost")
        terminalreporter.line(f"{total_s:.0f} CPU s")
        if self._yardstick is not None:
            terminalreporter.line(f"{1_000 * self._yardstick.mean_s:.1f} ms of CPU time for the yardstick")
        files: Counter[str] = Counter()
        for nodeid, spent_s in self._cpu_s.items():
            files[nodeid.partition("::")[0]] += spent_s  # type: ignore[assignment]
        for costs in (files, self._cpu_s):
            for name, cpu_s in sorted(costs.items(), key=lambda item: -item[1])[:NUM_SHOWN]:
                if cpu_s >= SHOWN_FROM_S:
                    terminalreporter.line(f"{cpu_s:7.1f} CPU s  {name}")
        if self._table is not None:
            Path(self._table).write_text(json.dumps(self._cpu_s, indent=1))
        if total_s > self._max_s:
            terminalreporter.line(f"FAILED: more than the budget of {self._max_s:.0f} CPU s (tests/cost.py)", red=True)
