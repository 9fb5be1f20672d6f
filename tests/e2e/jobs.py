"""What an end-to-end test does with a cluster, through the programs that a user has: kubectl and longshore."""

import json
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
import yaml

from longshore.api import contract, names
from tests.commands import command_of

LIMIT_S = 400.0
RECHECK_S = 2.0
EXIT_LIMIT_S = 60.0
NUM_GPUS = 8
"""Pretended GPUs of the cluster, all on its node."""

Json = dict[str, Any]

_HASHED = """
from zlib import crc32


def score(prompt: str, response: str, answer: str) -> float:
    return crc32(response.encode()) / 2**32
"""


@dataclass(frozen=True)
class Cluster:
    """A cluster and a shell on it."""

    kubeconfig: Path
    environment: dict[str, str]

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run the real kubectl; returns its standard output."""
        if shutil.which("kubectl") is None:
            pytest.skip("kubectl is not installed")
        done = self._run(["kubectl", *arguments], stdin)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout if check else done.stdout + done.stderr

    def longshore(self, *arguments: str) -> str:
        """Run the command line; returns its standard output."""
        done = self._run([sys.executable, "-m", "longshore_cli", *arguments], None)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def apply(self, manifest: Json) -> "Job":
        """`kubectl apply`."""
        uid = self.kubectl("apply", "-f", "-", "-o", "jsonpath={.metadata.uid}", stdin=yaml.safe_dump(manifest))
        return Job(self, manifest["metadata"]["name"], uid)

    def job(self, name: str) -> "Job":
        """One that somebody else applied."""
        return Job(self, name, self.kubectl("get", "rljob", name, "-o", "jsonpath={.metadata.uid}"))

    @property
    def run_dir(self) -> Path:
        """In which the embedded cluster's pods have their files, and their processes their working directories."""
        return Path((self.kubeconfig.parent / "run-dir").read_text().strip())

    @contextmanager
    def without_leftovers(self) -> Iterator[None]:
        """Delete the jobs that exist at the end of the block and did not before: they hold GPUs that others need."""
        before = self._uids_of_jobs()
        try:
            yield
        finally:
            left = [Job(self, name, uid) for uid, name in self._uids_of_jobs().items() if uid not in before]
            if left:
                self.kubectl("delete", "rljobs", *(job.name for job in left), "--timeout=120s")
            for job in left:
                job.assert_nothing_is_left()

    @contextmanager
    def in_namespace(self, name: str) -> Iterator["Cluster"]:
        """The cluster, with another namespace where commands name none; deleted in the end, with all that it holds."""
        self.kubectl("create", "namespace", name)
        kubeconfig = yaml.safe_load(self.kubeconfig.read_text())
        for context in kubeconfig["contexts"]:
            context["context"]["namespace"] = name
        path = self.kubeconfig.with_name(f"{name}.{self.kubeconfig.name}")
        path.write_text(yaml.safe_dump(kubeconfig))
        path.chmod(0o600)
        try:
            yield Cluster(path, self.environment)
        finally:
            self.kubectl("delete", "namespace", name, "--timeout=120s")

    def _uids_of_jobs(self) -> dict[str, str]:
        """Names of all jobs by UID."""
        path = r'jsonpath={range .items[*]}{.metadata.uid} {.metadata.name}{"\n"}{end}'
        lines = self.kubectl("get", "rljobs", "-o", path).splitlines()
        return {uid: name for uid, _, name in (line.partition(" ") for line in lines)}

    def _run(self, command: list[str], stdin: str | None) -> "subprocess.CompletedProcess[str]":
        environment = {**self.environment, "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(
            command, env=environment, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )


@dataclass(frozen=True)
class Job:
    """An applied RLJob."""

    cluster: Cluster
    name: str
    uid: str

    def status(self) -> Json:
        """`status` of the RLJob."""
        status: Json = json.loads(self.cluster.kubectl("get", "rljob", self.name, "-o", "json")).get("status", {})
        return status

    def condition(self, kind: str) -> Json:
        """One condition, or an empty one."""
        found: list[Json] = [c for c in self.status().get("conditions", []) if c["type"] == kind]
        return found[0] if found else {}

    def wait(self, what: str, holds: Callable[[Json], bool], limit_s: float = LIMIT_S) -> Json:
        """Wait until the status is as asked; the job's story is printed when it does not come."""
        with self._watched(limit_s) as statuses:
            for status in statuses:
                if status and holds(status):  # The operator has not seen a job without a status.
                    return status
                if status.get("phase") in ("Succeeded", "Failed"):
                    break
        raise AssertionError(f"{what}: not reached\n{self.story()}")

    @contextmanager
    def _watched(self, limit_s: float) -> Iterator[Iterator[Json]]:
        """Every status of the job in the next `limit_s` seconds, by one kubectl that watches.

        The last status comes again after RECHECK_S of silence, for what a condition sees beside the status.
        """
        # Of an object by its name kubectl does not show a change between its first answer and the start of its watch.
        named = f"--field-selector=metadata.name={self.name}"
        command = ["kubectl", "get", "rljobs", named, "-o", "json", "--watch"]
        environment = {**self.cluster.environment, "KUBECONFIG": str(self.cluster.kubeconfig)}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as watching:
            documents: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
            reader = threading.Thread(target=_read_documents, args=(watching.stdout, documents.put))
            reader.start()
            try:
                yield _statuses(documents, limit_s)
            finally:
                watching.terminate()
                reader.join()

    def wait_finished(self, limit_s: float = LIMIT_S) -> Json:
        """Wait for Succeeded or Failed."""
        return self.wait("the job ends", lambda status: status.get("phase") in ("Succeeded", "Failed"), limit_s)

    def wait_step(self, step: int) -> Json:
        """Wait until so many steps are done."""
        return self.wait(f"step {step}", lambda status: status.get("runtime", {}).get("step", 0) >= step)

    def wait_resumed(self, attempt: int) -> Json:
        """Wait until an attempt trains: two steps more than when it was first seen to run."""
        seen = self.wait(f"attempt {attempt}", lambda status: status["attempt"] == attempt and _is_training(status))
        return self.wait_step(seen["runtime"]["step"] + 2)

    def wait_nothing_runs(self) -> None:
        """Wait until every pod of the job has ended or is gone."""
        selector = f"longshore.dev/job={self.name}"
        running = ("get", "pods", "-l", selector, "--field-selector=status.phase=Running", "-o", "name")
        deadline_s = time.monotonic() + LIMIT_S
        while names := self.cluster.kubectl(*running):
            assert time.monotonic() < deadline_s, f"still running: {names}"
            time.sleep(0.5)  # kubectl cannot wait for one phase or the other.

    def story(self) -> str:
        """Everything that explains a failure."""
        describe = self.cluster.kubectl("describe", "rljob", self.name, check=False)
        logs = self.cluster.kubectl("logs", f"{self.name}-coordinator", "--tail=40", check=False)
        return f"{describe}\n{logs}"

    def output(self) -> Path:
        """The job's output directory, on the disk of the embedded cluster."""
        return self._output

    @cached_property
    def _output(self) -> Path:
        volumes = json.loads(self.cluster.kubectl("get", "pv", "-o", "json"))["items"]
        job = json.loads(self.cluster.kubectl("get", "rljob", self.name, "-o", "json"))
        claim = job["spec"]["storage"].get("claimName", names.storage_claim(self.name))
        path = next(v["spec"]["hostPath"]["path"] for v in volumes if v["spec"]["claimRef"]["name"] == claim)
        return Path(path) / names.default_output(self.name, job["metadata"]["uid"])

    def ledger(self) -> list[Json]:
        """Which draws every step consumed."""
        return [json.loads(line) for line in (self.output() / "ledger.jsonl").read_text().splitlines()]

    def metrics(self) -> list[Json]:
        """Return the metrics of every complete step; the job may still run, and evaluations have lines of their own."""
        written = (self.output() / "metrics.jsonl").read_text()
        rows = [json.loads(line) for line in written[: written.rfind("\n") + 1].splitlines()]
        return [row for row in rows if "timing_s/step" in row]

    def kill(self, pod: str) -> None:
        """SIGKILL the main process of a pod, as when it runs out of memory."""
        name = f"{self.name}-{pod}"
        for process in self._processes(name):
            if "-m longshore_runtime " in command_of(process):
                process.send_signal(signal.SIGKILL)
                return
        raise AssertionError(f"pod {name} has no main process")

    def commands(self) -> list[str]:
        """Return the command lines of all processes of the job's pods."""
        return [command_of(process) for process in self._processes(f"{self.name}-")]

    def remove(self, pod: str) -> str:
        """Delete a pod without grace, as when its node is lost; returns its UID."""
        name = f"{self.name}-{pod}"
        uid = self._uid(name)
        self.cluster.kubectl("delete", "pod", name, "--grace-period=0", "--force")
        return uid

    def wait_replaced(self, pod: str, uid: str) -> None:
        """Wait until another pod has taken the place of this one, and all workers are there."""
        name = f"{self.name}-{pod}"
        self.wait(
            f"{name} is replaced",
            lambda status: (
                self._uid(name) not in ("", uid) and status["workers"]["ready"] == status["workers"]["desired"]
            ),
        )

    def _processes(self, pod_prefix: str) -> Iterator[psutil.Process]:
        """Processes of the job's pods with this prefix, the oldest first; other clusters may have jobs of this name.

        The environment of a process names job and pod. Forks have that of the process that they are forks of, so they
        are known by their title and by their working directory.
        """
        mark = f"{contract.ENV_JOB_UID}={self.uid}"
        run_dir, title = self.cluster.run_dir, re.compile(rf"python -m .* \[{re.escape(pod_prefix)}")
        for process in sorted(psutil.process_iter(), key=lambda process: process.create_time()):
            try:
                environment = Path(f"/proc/{process.pid}/environ").read_text(errors="replace").split("\0")
                of_pod = any(one.startswith(f"{contract.ENV_POD_NAME}={pod_prefix}") for one in environment)
                is_fork = title.match(command_of(process)) and run_dir in Path(process.cwd()).parents
                if is_fork or (of_pod and mark in environment):
                    yield process
            except (OSError, psutil.Error):
                continue  # It has ended, or belongs to somebody else.

    def _uid(self, name: str) -> str:
        """Return the UID of a pod; empty while there is none."""
        return self.cluster.kubectl("get", "pod", name, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")

    def delete(self) -> None:
        """Delete the job and see that nothing of it is left: no object, no process."""
        self.cluster.kubectl("delete", "rljob", self.name, "--timeout=120s")
        self.assert_nothing_is_left()

    def assert_nothing_is_left(self) -> None:
        """See that no object of the deleted job is left, and no process."""
        selector = f"longshore.dev/job={self.name}"
        kinds = "pods,services,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,pvc"
        limit_s = contract.COORDINATOR_GRACE_S - EXIT_LIMIT_S  # It ends when it is asked to; nobody has to kill it.
        self.cluster.kubectl("wait", "--for=delete", kinds, "-l", selector, f"--timeout={limit_s:g}s", check=False)
        left = self.cluster.kubectl("get", kinds, "-l", selector, "-o", "name").split()
        assert not left, "\n".join(self._said_by(left))
        # A pod that was deleted without grace leaves the API server before its processes.
        _, alive = psutil.wait_procs(list(self._processes(f"{self.name}-")), timeout=EXIT_LIMIT_S)
        assert [(process.pid, process.ppid(), process.status(), command_of(process)) for process in alive] == []

    def _said_by(self, left: Sequence[str]) -> Iterator[str]:
        """What there is to read about objects that should be gone."""
        yield self.cluster.kubectl("get", *left, "-o", "yaml", check=False)
        for name in left:
            if name.startswith("pod/"):
                yield f"logs of {name}:"
                yield self.cluster.kubectl("logs", name, check=False)


def _is_training(status: Json) -> bool:
    return status["phase"] == "Running" and status.get("runtime", {}).get("attempt") == status["attempt"]


def _read_documents(stream: IO[str], put: Callable[[Json | None], None]) -> None:
    """Hand over each JSON document of a stream, and None at its end; kubectl ends one with a line of a brace."""
    lines: list[str] = []
    for line in stream:
        lines.append(line)
        if line.rstrip("\n") == "}":
            put(json.loads("".join(lines)))
            lines.clear()
    put(None)


def _statuses(documents: "queue.SimpleQueue[Json | None]", limit_s: float) -> Iterator[Json]:
    deadline_s = time.monotonic() + limit_s
    status: Json | None = None
    while time.monotonic() < deadline_s:
        try:
            document = documents.get(timeout=RECHECK_S)
        except queue.Empty:
            if status is not None:
                yield status
            continue
        if document is None:
            return
        status = document.get("status", {})
        yield status


def fake_job(name: str, **spec: Any) -> Json:
    """A job with a deterministic engine and trainer: everything around them is real."""
    algorithm = {"steps": 12, "promptsPerStep": 4, "responsesPerPrompt": 4, "maxResponseTokens": 200, "seed": 3}
    task = {"name": "task", "kind": "Task", "timeoutSeconds": LIMIT_S}  # A late score is 0, however right a response.
    base: Json = {
        "model": {"builtin": "Tiny", "maxContextTokens": 256},
        "data": {"builtin": "Counting", "heldOutPrompts": 4},
        "algorithm": algorithm,
        "rollout": {"strategy": "TailBatching", "engine": {"backend": "Fake", "extraArgs": {"step_s": 0.01}}},
        "trainer": {"backend": "Fake"},
        "reward": {"functions": [task], "pods": 0, "workersPerPod": 1},
        "checkpoint": {"everySteps": 2},
        "workers": {"replicas": 1, "gpusPerPod": 1, "gpuResourceName": "longshore.dev/pretend-gpu"},
        "storage": {"create": {"size": "1Gi"}},
    }
    return {
        "apiVersion": "longshore.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name},
        "spec": {**base, **spec},
    }


def claim(name: str) -> Json:
    """A claim of storage that all pods share."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def coordinator_with(modules: Path) -> Json:
    """`coordinator` of a job whose coordinator imports what is in a directory."""
    container = {"name": contract.CONTAINER, "env": [{"name": "PYTHONPATH", "value": str(modules)}]}
    return {"template": {"spec": {"containers": [container]}}}


def written_reward(modules: Path, source: str) -> tuple[Json, Json]:
    """`reward` and `coordinator` of a job that is scored by the function `score` of this source."""
    (modules / "written.py").write_text(source)
    function = {"name": "written", "kind": "Python", "importPath": "written:score", "timeoutSeconds": LIMIT_S}
    return {"functions": [function], "pods": 0, "workersPerPod": 1}, coordinator_with(modules)


def hashed_reward(modules: Path) -> tuple[Json, Json]:
    """`reward` and `coordinator` of a job in which responses of one prompt differ, whatever an engine makes up."""
    return written_reward(modules, _HASHED)


def assert_every_draw_once(
    ledger: list[Json], num_prompts: int, num_responses: int, num_updates: int = 1, *, has_ended: bool = True
) -> None:
    """No draw is lost or trained twice, batches are exact, and only the drain at the end is smaller.

    `num_updates`: optimizer updates of a step, unless its round is long; each gives another policy version.
    `has_ended`: whether every deferred draw has had its turn.
    """
    consumed = Counter(draw for row in ledger for draw in (*row["trained"], *row["dropped"], *row["rejected"]))
    assert set(consumed.values()) == {1}, "a draw was consumed twice"
    deferred = {draw for row in ledger for draw in row["deferred"]}
    assert not has_ended or deferred <= consumed.keys(), "a deferred draw was lost"
    assert [row["step"] for row in ledger] == list(range(1, len(ledger) + 1))
    policy_version = 0
    for row in ledger:
        assert all(len(set(responses)) == num_responses for responses in row["trained"].values())
        assert len(row["trained"]) == num_prompts or row["kind"] == "Long" or row is ledger[-1]
        assert row["policy_versions"] == [policy_version], "a token of other weights was trained"
        assert row["num_updates"] == num_updates or row["kind"] == "Long"
        policy_version += row["num_updates"]
