"""What all tests share."""

import os
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from longshore_runtime.cluster.ray_environment import RAY_ENVIRONMENT
from tests.cost import CostPlugin
from tests.properties import DEEP

# Ray reads it when it is imported: a thread that outlives a test must not start Ray again behind the next one's back.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = RAY_ENVIRONMENT["RAY_ENABLE_AUTO_CONNECT"]
# With more threads than cores, those of OpenMP spin while they wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Hypothesis would fail examples that take 200 ms, which says something about the machine and nothing about the code.
settings.register_profile("ci", deadline=None, max_examples=50)
settings.register_profile("deep", deadline=None, max_examples=1000)
settings.load_profile("deep" if DEEP else "ci")

# What takes longest comes first, so that test processes end together.
LONGEST_FIRST = (
    "e2e/test_elastic.py",
    "contract/engines",
    "e2e/test_rewards.py",
    "e2e/test_job.py",
    "contract/trainers",
    "e2e",
    "contract/operator",
    "contract/judge",
    "contract",
    "unit",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Tests that are long by nature run before a release."""
    parser.addoption("--soak", action="store_true", help="also run the tests marked soak")


def pytest_configure(config: pytest.Config) -> None:
    """Measure what tests cost."""
    config.pluginmanager.register(CostPlugin(), "cost")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is long by nature, and put what takes longest first."""
    if not config.getoption("--soak"):
        long = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    items.sort(key=lambda item: _rank(item.nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Which process runs which test."""
    return ByGroup(config, log)


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """Tests of one group run in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


def _group(nodeid: str) -> str:
    """A part of the contract tests, because its files share fixtures; elsewhere one file."""
    path = nodeid.partition("::")[0]
    return "/".join(path.split("/")[:3]) if path.startswith("tests/contract/") else path


def _rank(nodeid: str) -> int:
    place = nodeid.removeprefix("tests/")
    return next((rank for rank, group in enumerate(LONGEST_FIRST) if place.startswith(group)), len(LONGEST_FIRST))
