"""The driver of a job's Ray cluster disconnects and lives on."""

import subprocess
import sys
from pathlib import Path

from tests.ray_pods import REPOSITORY

DRIVER = """
import gc, sys, threading
from pathlib import Path
import ray
from tests.ray_pods import worker_pods


class Cycle:
    pass


def drop_one() -> None:
    cycle = Cycle()
    cycle.itself, cycle.reference = cycle, references.pop()


def drop_all() -> None:
    while references:
        drop_one()
        is_over.wait(0.0005)


is_over = threading.Event()
with worker_pods(Path(sys.argv[1]), count=0):
    references = [ray.put(number) for number in range(10_000)]
    gc.set_threshold(1, 1, 1)
    thread = threading.Thread(target=drop_all)
    thread.start()
num_before = len(references)
is_over.set()
thread.join()
print("left when disconnected:", num_before)
"""


def test_a_driver_outlives_garbage_that_is_found_while_it_disconnects(tmp_path: Path) -> None:
    """Another thread has references in cycles: a thread that frees one while Ray disconnects ends the process."""
    ended = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    num_left = int(ended.stdout.rpartition(":")[2])
    assert num_left > 0, "references were dropped before, while and after the driver disconnected"
