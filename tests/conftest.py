"""What all tests share."""

import gc
import os
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from longshore_runtime.cluster.ray_environment import RAY_ENVIRONMENT
from tests.cost import CostPlugin
from tests.failures import AtOnce
from tests.properties import load_profile
from tests.yardstick import Yardstick

# Ray reads it when it is imported: a thread that outlives a test must not start Ray again behind the next one's back.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = RAY_ENVIRONMENT["RAY_ENABLE_AUTO_CONNECT"]
# With more threads than cores, those of OpenMP spin while they wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
load_profile()

_SOCKETS = "VLLM_RPC_BASE_PATH"

# What one process has to run for longest comes first, and what is short last, so that test processes end together.
LONGEST_FIRST = (
    "contract/operator",
    "contract/trainers",
    "contract/engines",
    "contract/how_to",
    "e2e",
    "contract/judge",
    "contract",
    "unit/sim",
    "unit",
)

_SAME_IMPORTS = {
    "tests/contract/profiling": "tests/contract/engines",
    "tests/contract/transports": "tests/contract/engines",
}
"""Parts of the contract tests that run where others have started a process with their imports (`tests.warm`)."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which tests run, in which order, and where their cost is written."""
    parser.addoption("--soak", action="store_true", help="also run the tests marked soak, which are long by nature")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="random order of files, and of the tests of a file")
    parser.addoption("--cost", metavar="FILE", help="write the CPU seconds of each test to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    """Measure what tests cost, and leave none of the sockets that vLLM does not remove."""
    measures_total = not hasattr(config, "workerinput")
    plugin = CostPlugin(config.getoption("--cost"), Yardstick() if measures_total else None)
    config.pluginmanager.register(plugin, "cost")
    if _SOCKETS not in os.environ:  # Processes that run tests have those of the one that started them.
        os.environ[_SOCKETS] = sockets = tempfile.mkdtemp(prefix="ls-")
        config.add_cleanup(lambda: shutil.rmtree(sockets, ignore_errors=True))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Show failures at once; not in a run in one process, which is short, or in which somebody looks at one test."""
    plugins = session.config.pluginmanager
    if session.config.getoption("numprocesses") and (reporter := plugins.getplugin("terminalreporter")) is not None:
        plugins.register(AtOnce(reporter), "failures")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is long by nature, and put what takes longest first, or everything in random order."""
    if not config.getoption("--soak"):
        long = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    if (seed := config.getoption("--shuffle")) is None:
        items.sort(key=lambda item: _rank(item.nodeid))
    else:
        items[:] = shuffled(items, seed)


def pytest_collection() -> None:
    """Collect tests without garbage collections, which would look at everything that they import again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what has been imported and collected out of all further garbage collections."""
    gc.freeze()
    gc.enable()


def shuffled(items: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """Files in random order, and the tests of each; the same in every process, which xdist asks for."""
    random = Random(seed)
    files: defaultdict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.path].append(item)
    return [
        item for tests in random.sample(list(files.values()), len(files)) for item in random.sample(tests, len(tests))
    ]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Which process runs which test."""
    return ByGroup(config, log)


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """Tests of one group run in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def group(nodeid: str) -> str:
    """Return what runs in one process: half of the end-to-end tests, a part of the contract tests, or a file.

    Files of a part share fixtures, or fork the same imports. A process that runs end-to-end tests has a cluster of its
    own, with all imports of a job; all of these tests in one process would take longer than everything else.
    """
    path = nodeid.partition("::")[0]
    if path.startswith("tests/e2e/"):
        return f"tests/e2e {path < 'tests/e2e/test_job'}"
    if not path.startswith("tests/contract/"):
        return path
    part = "/".join(path.split("/")[:3])
    return _SAME_IMPORTS.get(part, part)


def _rank(nodeid: str) -> int:
    place = nodeid.removeprefix("tests/")
    return next((rank for rank, group in enumerate(LONGEST_FIRST) if place.startswith(group)), len(LONGEST_FIRST))
