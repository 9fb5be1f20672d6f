"""What the embedded cluster imports once for all pods; `contract/trainers/test_ranks.py` does the same for the rest."""

import subprocess
import sys

import pytest

from longshore_cli.cluster import PRELOADED
from longshore_runtime.cluster.node_starter import PRELOADED as FOR_RANKS

COUNT_THREADS = """
import importlib, os, sys
importlib.import_module(sys.argv[1])
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.parametrize("module", sorted({*PRELOADED} - {FOR_RANKS}))
def test_it_starts_no_thread(module: str) -> None:
    """With one, all pods would start as new processes, each with seconds of imports, and nobody would see it."""
    done = subprocess.run([sys.executable, "-c", COUNT_THREADS, module], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_the_other_one_is_that_of_the_ranks() -> None:
    assert FOR_RANKS in PRELOADED
