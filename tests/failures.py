"""Failures are shown when they happen: a run of many minutes may be stopped before its end, where pytest shows them."""

import pytest
from _pytest.terminal import TerminalReporter


class AtOnce:
    """Write each failure below the dots of the tests so far."""

    def __init__(self, reporter: TerminalReporter) -> None:
        self._reporter = reporter

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the failure of a test, or of what comes before or after it."""
        if report.failed:
            self._reporter.write_line("")
            self._reporter.section(f"{report.nodeid} ({report.when})", sep="_", red=True)
            report.toterminal(self._reporter.config.get_terminal_writer())
