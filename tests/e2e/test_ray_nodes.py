"""Pods as Ray nodes, with real processes: joining, placing engines, losing pods, and ending without a trace.

All pods are processes on this machine with loopback addresses of their own.
"""

import contextlib
import ctypes
import dataclasses
import json
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import psutil
import pytest
import ray

from longshore.api import contract
from longshore.api.contract import ExitCode
from longshore.api.names import Component
from longshore.api.rollout import EngineBackend, EngineSettings
from longshore.rounds.messages import EngineLost
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.cluster.ray_driver import ray_driver
from longshore_runtime.cluster.ray_environment import RAY_ENVIRONMENT
from longshore_runtime.cluster.ray_node import head_starter, start_head
from longshore_runtime.engine_protocol import Completion, Request
from longshore_runtime.errors import EngineDied
from longshore_runtime.places import Place
from longshore_runtime.rollout.engine_handle import EngineHandle
from longshore_runtime.rollout.events import EngineOutput, Event
from longshore_runtime.settings import Settings
from longshore_runtime.weights.buckets import checksums, combined_checksum
from tests.addresses import network

pytestmark = pytest.mark.e2e

SPEC = {
    "model": {"builtin": "Tiny"},
    "data": {"builtin": "Counting"},
    "algorithm": {"steps": 1, "promptsPerStep": 1, "responsesPerPrompt": 2, "maxResponseTokens": 64},
    "storage": {"claimName": "none"},
    "rollout": {"engine": {"backend": "Fake"}},
    "trainer": {"backend": "Fake"},
}
WEIGHTS = {"w": np.arange(8, dtype=np.float32)}
LIMIT_S = 120.0
PR_SET_CHILD_SUBREAPER = 36
LOSS_LIMIT_S = 60.0


@dataclasses.dataclass
class Pod:
    """A worker pod: a process that keeps its descendants, as a container does."""

    process: subprocess.Popen[bytes]
    termination_log: Path
    ip: str

    def wait_ready(self) -> None:
        """Wait until it has joined: its log says so before anything else can happen to it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if b"joined the coordinator" in line:
                return
        raise AssertionError(f"the pod ended with status {self.process.wait()}: {self.termination_log.read_text()}")

    def processes(self) -> list[psutil.Process]:
        """Everything that lives in the pod now."""
        try:
            main = psutil.Process(self.process.pid)
            return [main, *main.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """As when its machine loses power; the main process last, since its orphans could not be found."""
        processes = self.processes()
        for process in reversed(processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


def adopt_orphans() -> None:
    """In a container, the main process has the number 1 and adopts what loses its parent."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Cluster:
    """A head in this process's session, and pods that join it."""

    def __init__(self, directory: Path, network: str) -> None:
        self.directory = directory
        self.head_ip = f"{network}.1"
        self._network = network
        self._pods: list[Pod] = []

    def settings(self) -> Settings:
        """Of the coordinator."""
        return Settings.from_env(self._environment(Component.COORDINATOR, 0, self.head_ip))

    def pod(self, index: int) -> Pod:
        """Start a worker pod; it does not wait."""
        ip = f"{self._network}.{len(self._pods) + 2}"
        environment = self._environment(Component.WORKER, index, ip)
        Path(environment[contract.ENV_CONFIG]).write_text(json.dumps(SPEC))
        process = subprocess.Popen(
            [sys.executable, "-m", "longshore_runtime", "worker"],
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
            preexec_fn=adopt_orphans,
        )
        pod = Pod(process, Path(environment[contract.ENV_TERMINATION_LOG]), ip)
        self._pods.append(pod)
        return pod

    def close(self) -> None:
        """End what is left."""
        for pod in self._pods:
            pod.kill()
            if pod.process.stderr is not None:
                pod.process.stderr.close()

    def _environment(self, component: Component, index: int, ip: str) -> dict[str, str]:
        return {
            contract.ENV_JOB_NAME: "job",
            contract.ENV_JOB_NAMESPACE: "test",
            contract.ENV_JOB_UID: "1",
            contract.ENV_ATTEMPT: "1",
            contract.ENV_COMPONENT: component,
            contract.ENV_INDEX: str(index),
            contract.ENV_POD_NAME: f"job-{component}-{index}",
            contract.ENV_POD_IP: ip,
            contract.ENV_COORDINATOR_ADDRESS: self.head_ip,
            contract.ENV_CONFIG: str(self.directory / "spec.json"),
            contract.ENV_STORAGE: str(self.directory),
            contract.ENV_TERMINATION_LOG: str(self.directory / f"why-{ip}"),
        }


def engine(index: int, events: "queue.SimpleQueue[Event]") -> EngineHandle:
    """An engine without a model on a worker pod; its responses never end by themselves."""
    options = EngineSettings(
        backend=EngineBackend.FAKE, extra_args={"median_tokens": 1e9, "sigma": 0.0, "step_s": 0.001}
    )
    return EngineHandle(
        index, Place(index, ()), EngineSpec(options, max_context_tokens=1 << 30), "model", "output", events.put
    )


def wait_noticed(ip: str) -> None:
    """Wait until Ray knows that the node of a pod is gone: until then it may choose it for new engines."""
    deadline_s = time.monotonic() + LOSS_LIMIT_S
    while any(node["Alive"] and node["NodeManagerAddress"] == ip for node in ray.nodes()):
        assert time.monotonic() < deadline_s, "Ray does not notice"


def still_alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that do not end by themselves; workers of Ray end once they notice that their node has."""
    alive: list[psutil.Process] = psutil.wait_procs(processes, timeout=LOSS_LIMIT_S)[1]
    return alive


def endless(name: str) -> Request:
    """A request that runs until it is aborted."""
    return Request(name, prompt_tokens=(5, 6), max_tokens=1 << 30, temperature=1.0, seed=0)


def sampled(handle: EngineHandle, name: str, events: "queue.SimpleQueue[Event]") -> Completion:
    """Wait until a request has tokens, abort it, and wait for what it had."""
    while handle.stats().get(LIMIT_S).num_tokens == 0:
        pass
    handle.abort([name])
    event = events.get(timeout=LIMIT_S)
    assert isinstance(event, EngineOutput)
    assert event.engine == handle.engine
    (completion,) = event.completions
    return completion


def test_engines_survive_the_loss_of_other_pods_and_nothing_is_left_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is a process of its own, because Ray reads its configuration when it is imported."""
    token = tmp_path / "token"
    token.write_text(os.urandom(32).hex())
    environment = {contract.ENV_RAY_AUTH_MODE: "token", contract.ENV_RAY_TOKEN_PATH: str(token), **RAY_ENVIRONMENT}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(dir="/tmp") as killed_pods_leave_files:
        monkeypatch.setenv("TMPDIR", killed_pods_leave_files)
        with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as driver:
            driver.submit(drive, tmp_path, f"{network()}.3").result()


def drive(directory: Path, network: str) -> None:
    """What happens, as the coordinator sees it."""
    adopt_orphans()
    with contextlib.closing(Cluster(directory, network)) as cluster:
        lose_and_regain_pods(cluster)


def lose_and_regain_pods(cluster: Cluster) -> None:
    """The course of events, each with what it must lead to."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    pods = [cluster.pod(index) for index in range(2)]  # before there is a head: they wait for it
    with head_starter() as starter, start_head(cluster.settings(), starter) as head:
        for pod in pods:
            pod.wait_ready()
            with urlopen(f"http://{pod.ip}:{contract.HEALTH_PORT}/readyz", timeout=LIMIT_S) as answer:
                assert answer.status == 200
            children = sorted(process.name() for process in pod.processes()[1:])
            assert len(children) == 4 and children[1:] == ["raylet", "sleep", "sleep"], (
                "no agent of Ray runs in a pod, but what forks its workers"
            )
        of_pods = {process.pid for pod in pods for process in pod.processes()}
        of_head = [process for process in psutil.Process().children(recursive=True) if process.pid not in of_pods]
        assert sorted(process.name() for process in of_head) == ["gcs_server", "raylet", "sleep", "sleep"], (
            "no dashboard, no client server and no agent of Ray runs in the coordinator's pod"
        )
        with ray_driver(cluster.settings().ray_address, cluster.head_ip):
            handles = [engine(index, events) for index in range(2)]
            for handle in handles:
                handle.wait_started(LIMIT_S)
            weights = ray.put(WEIGHTS)
            replies = [handle.publish([weights], 0) for handle in handles]
            assert [reply.get(LIMIT_S) for reply in replies] == [combined_checksum([checksums(WEIGHTS)])] * 2

            for handle in handles:
                handle.add([endless(f"on-{handle.engine}")])
            pods[1].kill()
            lost = events.get(timeout=LOSS_LIMIT_S)
            assert isinstance(lost, EngineLost)
            assert (lost.engine, handles[1].alive, handles[0].alive) == (1, False, True)
            with pytest.raises(EngineDied):
                handles[1].stats().get(LIMIT_S)
            assert sampled(handles[0], "on-0", events).trajectory.tokens.tolist()

            back = cluster.pod(1)
            back.wait_ready()
            wait_noticed(pods[1].ip)
            handles[1] = engine(1, events)
            handles[1].wait_started(LIMIT_S)
            handles[1].publish([weights], 1).get(LIMIT_S)
            handles[1].add([endless("again")])
            assert sampled(handles[1], "again", events).trajectory.runs[0].policy_version == 1

            handles[0].stop()
            of_back = back.processes()
            back.process.send_signal(signal.SIGTERM)
            assert back.process.wait(LIMIT_S) == ExitCode.INTERRUPTED
            assert back.termination_log.read_text() == "the pod was asked to stop"
            assert still_alive(of_back) == []
            shown = events.get(timeout=LOSS_LIMIT_S)
            assert isinstance(shown, EngineLost)
            assert shown.engine == 1, "of a stopped engine nothing is reported"
        of_first = pods[0].processes()
        head.stop()
        code = pods[0].process.wait(LOSS_LIMIT_S)
        assert (code, pods[0].termination_log.read_text()) == (ExitCode.SUCCEEDED, "the coordinator is gone")
        assert still_alive(of_first) == []
