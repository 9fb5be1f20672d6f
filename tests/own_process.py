"""Tests in processes of their own, for what a process can have or do only once."""

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def in_own_process(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a fork of this process: it has all imports, and must not have used a GPU."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        pid = os.fork()
        if pid == 0:
            _run_and_exit(lambda: test(*args, **kwargs))
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, "the test failed in its process: see what it has written"

    return run


def _run_and_exit(test: Callable[[], None]) -> None:
    """End the process without what pytest would do at its end."""
    failed = True
    try:
        test()
        failed = False
    except BaseException:  # noqa: BLE001 - this process is a copy of another, and must not go on as one
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(failed)
