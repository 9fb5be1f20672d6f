"""The driver of a job's Ray cluster ends its waits when it is asked to, disconnects and lives on."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ray_pods import REPOSITORY

DRIVER = """
import gc, sys, threading
from pathlib import Path
import ray
from longshore_runtime.cluster.ray_node import head_starter
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
with worker_pods(Path(sys.argv[1]), count=0, head=head_starter):
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


WAITING_DRIVER = """
import os, signal, sys, threading
from pathlib import Path
import ray
from longshore_runtime.cluster.ray_node import head_starter
from longshore_runtime.coordinator import _StopSignal
from longshore_runtime.stop import Stop
from tests.ray_pods import worker_pods

with worker_pods(Path(sys.argv[1]), count=0, head=head_starter):
    stop = Stop()
    signals = _StopSignal(stop)
    never = ray.remote(num_cpus=0, label_selector={"pod": "none"})(lambda: None).remote()
    waits = {"get": lambda: ray.get(never, timeout=60), "wait": lambda: ray.wait([never], timeout=60)}[sys.argv[2]]
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    try:
        waits()
    except BaseException as error:
        print(type(error).__name__, stop.is_asked)
"""


CONNECTING_DRIVER = """
import os, signal, sys, time
from pathlib import Path
import ray
from ray._private import worker
from longshore_runtime.__main__ import leave
from longshore_runtime.cluster.ray_node import head_starter
from longshore_runtime.coordinator import _StopSignal
from longshore_runtime.stop import Stop
from tests.ray_pods import worker_pods

connect, stop = worker.connect, Stop()

def connect_and_stop(*arguments, **options):
    connect(*arguments, **options)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)

worker.connect = connect_and_stop
signals = _StopSignal(stop)
try:
    with worker_pods(Path(sys.argv[1]), count=0, head=head_starter):
        print("not interrupted")
except BaseException as error:
    print(type(error).__name__, stop.is_asked, ray.is_initialized(), "aborted in", signal.alarm(0))
leave(75)
"""


def test_a_driver_asked_to_stop_while_it_connects_is_interrupted_and_disconnects(tmp_path: Path) -> None:
    """Ray has handlers of its own: the coordinator would end as if it had crashed, with one of them after a while."""
    command = [sys.executable, "-c", CONNECTING_DRIVER, str(tmp_path)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.returncode) == ("KeyboardInterrupt True False aborted in 0\n", 75), ended.stderr[-2000:]


@pytest.mark.parametrize("call", ["get", "wait"])
def test_a_wait_of_ray_ends_when_the_pod_is_asked_to_stop(tmp_path: Path, call: str) -> None:
    """The coordinator waits before its loop runs, such as for engines that load: Ray goes on after most exceptions."""
    command = [sys.executable, "-c", WAITING_DRIVER, str(tmp_path), call]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert ended.stdout.split() == ["KeyboardInterrupt", "True"], ended.stderr[-2000:]
