"""A cluster, the chart's rights in it, and an operator process that has these rights and no others."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from benchmarks.measured_process import free_port
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream

from longshore.api.scheduling import PodGroupKind
from tests.forked_program import ForkServer

CHART = Path(__file__).parents[3] / "charts" / "longshore"
RELEASE_NAMESPACE = "longshore-system"
SERVICE_ACCOUNT = "longshore-operator"
GPU = "longshore.dev/pretend-gpu"
CHART_VALUES: Final = {
    "replicas": 0,
    "jobPolicy": {"enabled": False},
    "podGroups": [kind.value for kind in PodGroupKind],
}
"""No operator pods, all rights, and no policy for jobs, which would refuse what the operator has to refuse as well."""
_PROGRAMS: Final = ForkServer("longshore_operator.main")
LITTLE = {"cpu": "10m", "memory": "16Mi"}
"""What pods that run `sleep` ask for, so that a node of any size has room."""
DEADLINE_S = 180.0
T = TypeVar("T")
ALLOWED_PRIORITY_CLASS = "allowed-by-the-chart"
HOLD = "trap 'exit 143' TERM; sleep 1000 & wait"
"""A command that ends at once when it is asked to: the first process of a container ignores signals that it does not
handle."""
ALWAYS_READY = {"exec": {"command": ["true"]}}


def eventually(what: str, look: Callable[[], T | None], deadline_s: float = DEADLINE_S) -> T:
    """The first true value of `look`, asked again and again until the deadline."""
    end_s = time.monotonic() + deadline_s
    while True:
        value = look()
        if value:
            return value
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        time.sleep(0.1)


@dataclass
class Cluster:
    """The cluster as its administrator sees it."""

    kubeconfig: Path

    def __post_init__(self) -> None:
        self.client = config.new_client_from_config(str(self.kubeconfig))
        self.core = client.CoreV1Api(self.client)
        self.custom = client.CustomObjectsApi(self.client)

    def token_kubeconfig(self, path: Path, namespace: str, service_account: str) -> Path:
        """A kubeconfig of this cluster with nothing but a service account's token."""
        request = client.AuthenticationV1TokenRequest(
            spec=client.V1TokenRequestSpec(audiences=[], expiration_seconds=3600)
        )
        answer = self.core.create_namespaced_service_account_token(service_account, namespace, request)
        admin = yaml.safe_load(self.kubeconfig.read_text())
        admin["users"] = [{"name": user["name"], "user": {"token": answer.status.token}} for user in admin["users"]]
        path.write_text(yaml.safe_dump(admin))
        return path


@dataclass
class Jobs:
    """RLJobs and pods of one namespace."""

    cluster: Cluster
    namespace: str

    def create(self, name: str = "demo", labels: dict[str, str] | None = None, **spec: Any) -> None:
        """Create a job; its coordinator and workers run the shell commands that `job_spec` is given."""
        body = {
            "apiVersion": "longshore.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": name, "labels": labels or {}},
            "spec": job_spec() | spec,
        }
        self._custom("create_namespaced_custom_object", body)

    def get(self, name: str = "demo") -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._custom("get_namespaced_custom_object", name)
            return found
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def patch(self, spec: dict[str, Any], name: str = "demo") -> None:
        self._custom("patch_namespaced_custom_object", name, {"spec": spec})

    def delete(self, name: str = "demo") -> None:
        self._custom("delete_namespaced_custom_object", name)

    def delete_all(self) -> None:
        for name in self.statuses():
            self.delete(name)

    def status(self, name: str = "demo") -> dict[str, Any]:
        job = self.get(name)
        assert job is not None
        status: dict[str, Any] = job.get("status") or {}
        return status

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Statuses of all jobs by name."""
        found = self.cluster.custom.list_namespaced_custom_object("longshore.dev", "v1alpha1", self.namespace, "rljobs")
        return {job["metadata"]["name"]: job.get("status") or {} for job in found["items"]}

    def condition(self, kind: str, name: str = "demo") -> dict[str, Any]:
        conditions = self.status(name).get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {})

    def gpu_pods(self, name: str) -> dict[str, str]:
        """uid by name of the pods of a job that hold GPUs, if they have any."""
        return {
            pod: found.metadata.uid
            for pod, found in self.pods().items()
            if pod.startswith(f"{name}-") and found.status.phase in ("Pending", "Running")
        }

    def wait_reported(self, name: str, reason: str, message: str) -> None:
        """Wait until the status says why the job waits for its admission."""

        def is_reported() -> bool:
            condition = self.condition("Admitted", name)
            return condition.get("reason") == reason and message in condition["message"]

        try:
            eventually(f"{name} waits because of {reason}: {message}", is_reported)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.condition('Admitted', name)}") from None

    def report(self, runtime: dict[str, Any], name: str = "demo") -> None:
        """What a coordinator does: server-side apply of its part of the status alone."""
        body = {
            "apiVersion": "longshore.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": name, "namespace": self.namespace},
            "status": {"runtime": runtime},
        }
        self.cluster.custom.patch_namespaced_custom_object_status(
            "longshore.dev", "v1alpha1", self.namespace, "rljobs", name, body,
            field_manager="longshore-coordinator", force=True, _content_type="application/apply-patch+yaml",
        )  # fmt: skip

    def wait_phase(self, phase: str, name: str = "demo", attempt: int | None = None) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            status = self.status(name)
            fits = status.get("phase") == phase and attempt in (None, status.get("attempt"))
            return status if fits else None

        try:
            return eventually(f"phase {phase}", look)
        except AssertionError as error:
            raise AssertionError(f"{error}; the status is {self.status(name)}") from None

    def wait_condition(self, kind: str, reason: str, name: str = "demo") -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            condition = self.condition(kind, name)
            return condition if condition.get("reason") == reason else None

        try:
            return eventually(f"{kind} for {reason}", look)
        except AssertionError as error:
            raise AssertionError(f"{error} of {name}; the statuses are {self.statuses()}") from None

    def pods(self) -> dict[str, Any]:
        """Pods by name."""
        found = self.cluster.core.list_namespaced_pod(self.namespace, label_selector="longshore.dev/job")
        return {pod.metadata.name: pod for pod in found.items}

    def worker_labels(self, label: str) -> list[str]:
        """A label of the workers, in their order."""
        workers = [pod.metadata.labels for pod in self.pods().values() if "-worker-" in pod.metadata.name]
        return [labels[label] for labels in sorted(workers, key=lambda labels: int(labels["longshore.dev/index"]))]

    def delete_pod(self, name: str) -> str:
        """Delete a pod; returns its uid."""
        pod = self.cluster.core.read_namespaced_pod(name, self.namespace)
        self.cluster.core.delete_namespaced_pod(name, self.namespace, grace_period_seconds=1)
        return str(pod.metadata.uid)

    def execute(self, pod: str, command: str) -> None:
        """Run a shell command in the first container of a pod.

        With a client of its own: while it runs a command, other threads cannot use it for anything else.
        """
        core = Cluster(self.cluster.kubeconfig).core
        stream(
            core.connect_get_namespaced_pod_exec, pod, self.namespace,
            command=["sh", "-c", command], stdout=True, stderr=True,
        )  # fmt: skip

    def events(self) -> list[Any]:
        """Events about the jobs."""
        found = self.cluster.core.list_namespaced_event(self.namespace).items
        return [event for event in found if event.involved_object.kind == "RLJob"]

    def event_reasons(self) -> list[str]:
        return sorted(event.reason for event in self.events())

    def _custom(self, method: str, *arguments: Any) -> Any:
        call = getattr(self.cluster.custom, method)
        return call("longshore.dev", "v1alpha1", self.namespace, "rljobs", *arguments)


def job_spec(coordinator: str = HOLD, worker: str = HOLD, replicas: int = 2, gpus_per_pod: int = 1) -> dict[str, Any]:
    """A spec whose pods run shell commands in place of the runtime, ready from the start."""
    return {
        "model": {"builtin": "Tiny"},
        "data": {"builtin": "Counting"},
        "algorithm": {"steps": 3, "promptsPerStep": 4, "responsesPerPrompt": 2, "maxResponseTokens": 64},
        "storage": {"create": {"size": "1Gi"}},
        "reward": {"pods": 0},
        "coordinator": {"resources": LITTLE, "template": shell(coordinator)},
        "workers": {
            "replicas": replicas,
            "gpusPerPod": gpus_per_pod,
            "gpuResourceName": GPU,
            "resources": LITTLE,
            "template": shell(worker),
        },
    }


def shell(command: str) -> dict[str, Any]:
    """Return a template of a pod that runs a shell command in place of the runtime, ready from the start."""
    own = {"name": "longshore", "command": ["sh", "-c", command]}
    return {"spec": {"containers": [own | {"readinessProbe": ALWAYS_READY}]}}


class Operator:
    """The operator as a process of its own."""

    def __init__(self, kubeconfig: Path, log: Path, *options: str, module: str = "longshore_operator") -> None:
        self.health_port = free_port()
        self._log = log
        arguments = ["run", f"--health-port={self.health_port}", "--runtime-image=unused"]
        arguments += [f"--lease-namespace={RELEASE_NAMESPACE}", *options]
        environment = {"KUBECONFIG": str(kubeconfig), "PATH": os.environ["PATH"], "HOME": str(log.parent)}
        log.touch()
        self._process = _PROGRAMS.start(module, arguments, environment, log)

    def log(self) -> str:
        return self._log.read_text()

    def wait_leading(self) -> None:
        """Wait until this process leads."""

        def leads() -> bool:
            assert self._process.is_alive(), self.log()
            return '"event": "leading"' in self.log()

        eventually("the operator leads", leads)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        if self._process.is_alive():
            self._send(number)
        self._process.join(DEADLINE_S)
        assert self._process.exitcode is not None, self.log()
        return self._process.exitcode

    def _send(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


@contextmanager
def operators(jobs: Jobs, kubeconfig: Path, folder: Path, *options: str) -> Iterator[Callable[[], Operator]]:
    """Yield what starts an operator for the namespace of the jobs; all of them end with the block."""
    started: list[Operator] = []

    def start() -> Operator:
        log = folder / f"operator-{len(started)}.log"
        started.append(Operator(kubeconfig, log, f"--namespace={jobs.namespace}", "--no-leader-election", *options))
        return started[-1]

    yield start
    for operator in started:
        operator.stop()
        print(operator.log())
