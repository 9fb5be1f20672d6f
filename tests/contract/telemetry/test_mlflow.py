"""MLflow's own client and server: a job is one run, whatever its attempts.

The server is a package of its own, which wants another pyarrow than the runtime: `make mlflow-server` installs it in an
environment of its own. What needs no server runs without.
"""

import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from benchmarks.measured_process import free_port

from longshore.api.tracking import Mlflow
from longshore_runtime.telemetry.tracker import TrackedRun, Tracker
from longshore_runtime.telemetry.trackers import TrackerThread

SERVER = Path(os.environ.get("LONGSHORE_TEST_MLFLOW", ".venv/mlflow/bin/mlflow"))
START_LIMIT_S = 300.0
RUN = TrackedRun("uid-1", "demo", "arithmetic", "seeds", {"algorithm": {"steps": 6, "name": "GRPO"}}, Path())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not SERVER.is_file():
        pytest.skip(f"there is no {SERVER}: install it with make mlflow-server")
    directory = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    command = [str(SERVER.absolute()), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
               "--backend-store-uri", f"sqlite:///{directory}/mlflow.db"]  # fmt: skip
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    process = subprocess.Popen(
        command, cwd=directory, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_healthy(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def wait_healthy(address: str, process: "subprocess.Popen[bytes]") -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, "the server has ended"
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError("the server does not start")


ODD_DOMAINS = ("https://example.com/math", "math/", "a//b", "./x", "..", "x" * 240, "x" * 235, "math/../code", "/", "")


def attempt(address: str, run: TrackedRun, steps: range, succeeded: bool | None) -> None:
    options = Mlflow(address=address)
    reported: list[str] = []
    thread = TrackerThread("mlflow", lambda: tracker_of(options, None), run, reported.append)
    for step in steps:
        odd = {f"reward/domain/{domain}/mean": 1.0 for domain in ODD_DOMAINS}
        thread.log(step, {"actor/pg_loss": step / 10, "reward/domain/a&b/mean": 1.0, **odd})
    thread.close(succeeded, limit_s=120)
    assert reported == []


def tracker_of(options: Mlflow, token: str | None) -> Tracker:
    """Imported here, as below: every process that collects tests would import MLflow."""
    from longshore_runtime.telemetry.mlflow_tracker import MlflowTracker

    return MlflowTracker(options, token)


def client_of(server: str) -> Any:
    """MLflow's own."""
    from mlflow.tracking import MlflowClient

    return MlflowClient(server)


def test_a_job_that_is_resumed_is_one_run_with_every_step_once(server: str) -> None:
    attempt(server, RUN, range(1, 5), None)
    client = client_of(server)
    experiment = client.get_experiment_by_name("arithmetic")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "RUNNING", "the job goes on"
    attempt(server, RUN, range(3, 7), True)
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("demo", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "actor/pg_loss")
    assert [(point.step, point.value) for point in history] == [(step, step / 10) for step in range(1, 7)]
    assert run.data.metrics["reward/domain/a_b/mean"] == 1.0, "MLflow allows no & in names"
    assert run.data.params == {"algorithm.steps": "6", "algorithm.objective.name": "GRPO"}
    assert run.data.tags["longshore.group"] == "seeds"


def test_another_job_is_another_run_and_one_that_fails_is_shown_as_failed(server: str) -> None:
    other = TrackedRun("uid-2", "demo", "geometry", None, {}, Path())
    attempt(server, other, range(1, 2), False)
    attempt(server, TrackedRun("uid-3", "demo", "geometry", None, {}, Path()), range(1, 2), None)
    client = client_of(server)
    runs = client.search_runs([client.get_experiment_by_name("geometry").experiment_id])
    assert sorted(run.info.status for run in runs) == ["FAILED", "RUNNING"]


@pytest.mark.parametrize(
    ("user", "token", "expected"),
    [(None, "key", "Bearer key"), ("me", "key", "Basic bWU6a2V5"), (None, None, None)],
)
def test_the_token_goes_to_the_server_and_into_no_environment(
    user: str | None, token: str | None, expected: str | None
) -> None:
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_error(401)

        def log_message(self, *arguments: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        tracker = tracker_of(Mlflow(address=f"http://127.0.0.1:{http.server_port}", user=user), token)
        with pytest.raises(Exception, match="401"):
            tracker.start(RUN)
        http.shutdown()
    assert seen[0] == expected
    assert token is None or token not in os.environ.values()
