"""`python -m longshore_runtime COMPONENT`: the main program of every pod of a job.

`report ROOT OUTPUT` writes the page of a job as a file, in a helper pod.
"""

import logging
import os
import signal
import sys
from typing import NoReturn

from longshore.api.contract import ExitCode
from longshore_runtime.cluster.ray_environment import RAY_ENVIRONMENT
from longshore_runtime.process.large_imports import without_collections
from longshore_runtime.process.logs import configure_logging


def main(arguments: list[str]) -> int:
    """Run the component that the arguments name; returns the exit status of the contract."""
    # The kernel drops a signal of the first process of a container that has no handler. The component has its own soon.
    signal.signal(signal.SIGTERM, _end)
    configure_logging()
    match arguments:
        case ["reward"]:
            # No Ray here: this pod runs code that models wrote.
            from longshore_runtime.rewards.transports.thread import run_reward
            from longshore_runtime.settings import Settings

            return run_reward(Settings.from_env())
        case ["environment"]:
            # Nor here: the policy steers what this pod runs.
            from longshore_runtime.environments.pod_server import run_environment
            from longshore_runtime.settings import Settings

            return run_environment(Settings.from_env())
        case ["report", root, output]:
            from longshore_runtime.page.report import run_report

            return run_report(root, output)
    # Ray reads its settings, the token mode included, when it is imported: nothing may import it before.
    os.environ.update(RAY_ENVIRONMENT)
    match arguments:
        case ["coordinator"]:
            from longshore_runtime.cluster.ray_node import head_starter

            with head_starter() as starter:  # Before other imports, which start threads.
                with without_collections():
                    from longshore_runtime.coordinator import run_coordinator
                    from longshore_runtime.data.tokenizer import import_without_torch

                    import_without_torch()
                return run_coordinator(starter)
        case ["worker" | "trainer"]:
            from longshore_runtime.cluster.worker import run_node
            from longshore_runtime.settings import Settings

            return run_node(Settings.from_env())
        case ["judge"]:
            from longshore_runtime.judge.server import run_judge
            from longshore_runtime.settings import Settings

            return run_judge(Settings.from_env())
    sys.stderr.write("usage: python -m longshore_runtime coordinator|worker|trainer|reward|judge|environment\n")
    return 2


def _end(*_: object) -> None:
    # An exception would be lost in a callback, or become an ImportError. Nothing has begun that has to be ended.
    os._exit(ExitCode.INTERRUPTED)


def leave(status: int) -> NoReturn:
    """End this process, in which nothing runs any more.

    Ray's native library would abort at the end of an interpreter that was interrupted while Ray connected.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
