"""The operator gives a job more reward pods when its rewards fall behind, and ends it at its deadline."""

import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.e2e.jobs import Cluster, fake_job

pytestmark = pytest.mark.e2e

SCORING_S = 1.0


class _SlowService(BaseHTTPRequestHandler):
    """A scoring service that takes its time."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(SCORING_S)
        answer = b'{"reward": 1}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def service() -> Iterator[str]:
    """Its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _SlowService) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def test_a_slow_reward_gets_a_second_pod_that_scores_until_the_deadline(cluster: Cluster, service: str) -> None:
    slow = {"name": "slow", "kind": "HTTP", "http": {"url": service}}
    reward = {"functions": [slow], "pods": 1, "maxPods": 2, "workersPerPod": 1}
    job = cluster.apply(fake_job("slow-reward", reward=reward, checkpoint={"everySteps": 100}))
    job.wait("two reward pods are wanted", lambda s: s["rewards"]["desired"] == 2)
    job.wait("both score", lambda s: s["runtime"]["rewards"]["workers"] == 2 == s["runtime"]["rewards"]["busy"])
    assert job.status()["phase"] == "Running"
    assert "reward pods from 1 to 2" in cluster.kubectl("describe", "rljob", "slow-reward")
    cluster.kubectl("patch", "rljob", "slow-reward", "--type=merge", "-p", '{"spec": {"activeDeadlineSeconds": 1}}')
    assert job.wait_finished()["phase"] == "Failed"
    assert job.condition("Failed")["reason"] == "DeadlineExceeded"
    job.wait_nothing_runs()
    job.delete()
