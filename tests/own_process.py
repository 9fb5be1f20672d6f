"""Tests in processes of their own, for what a process can have or do only once."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
_MARK: Final = "LONGSHORE_TEST_HAS_ITS_PROCESS"


def in_own_process(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test by a pytest of its own: this process may have used the GPU, and could not be forked."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        if _MARK in os.environ:
            test(*args, **kwargs)
            return
        node_id = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        command = [sys.executable, "-m", "pytest", "-q", node_id]
        done = subprocess.run(
            command, cwd=ROOT, env=environment | {_MARK: "1"}, stdout=subprocess.PIPE, text=True, check=False
        )
        # A test that is skipped there has not passed.
        assert done.returncode == 0 and "1 passed" in done.stdout, f"it did not pass in its process:\n{done.stdout}"

    return run
