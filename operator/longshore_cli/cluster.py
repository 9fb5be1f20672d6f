"""`up` and `down`: a cluster that runs RLJobs, and nothing left behind afterwards."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from longshore_cli.errors import CliError
from longshore_client import installed, state
from longshore_client.kube import Kube
from longshore_client.transfer.pod import trouble
from longshore_kube.errors import ApiError
from longshore_kube.resources import DEPLOYMENTS, Json

START_TIMEOUT_S: Final = 120
OPERATOR_TIMEOUT_S: Final = 180.0
LOG_TAIL_LINES: Final = 20
PRELOADED: Final = ("longshore_runtime.preload", "longshore_operator.main")
"""Imported once for all pods of the embedded cluster; none may start a thread, which forks would lack."""


def start_embedded(nodes: int | None = None, gpus_per_node: int | None = None) -> Path:
    """Start the embedded cluster of this directory, unless it runs, and return its kubeconfig.

    Raises:
        CliError: it is not installed, or did not start; with its own words.
    """
    arguments = ["up", "--data-dir", str(state.cluster_dir()), "--detach", f"--preload={','.join(PRELOADED)}"]
    if nodes is not None:
        arguments += ["--nodes", str(nodes)]
    if gpus_per_node is not None:
        arguments += ["--gpus-per-node", str(gpus_per_node)]
    if is_embedded_running():
        return _kubeconfig()
    state.home().mkdir(parents=True, exist_ok=True)
    done = _devcluster(arguments)
    if done.returncode != 0:
        raise CliError(f"The embedded cluster did not start: {_words(done)}")
    state.remember_kubeconfig(_kubeconfig())
    return _kubeconfig()


def stop_embedded(*, delete_data: bool = False) -> bool:
    """Stop the embedded cluster of this directory with every process in it; False when it did not run.

    `delete_data` also removes its objects and volumes, and with them every model that was trained in it.

    Raises:
        CliError: it did not stop; with its own words.
    """
    was_running = is_embedded_running()
    if state.cluster_dir().exists():
        options = ["--delete-volumes"] if delete_data else []
        done = _devcluster(["down", "--data-dir", str(state.cluster_dir()), *options])
        if done.returncode != 0:
            raise CliError(f"The embedded cluster did not stop: {_words(done)}")
        if delete_data:
            shutil.rmtree(state.cluster_dir())
    state.forget_kubeconfig()
    return was_running


def is_embedded_running() -> bool:
    """Return whether the embedded cluster of this directory runs."""
    if not state.cluster_dir().exists():
        return False
    return _devcluster(["status", "--data-dir", str(state.cluster_dir())]).returncode == 0


def wait_for_operator(kube: Kube, namespace: str) -> None:
    """Wait until the operator's newest pods are available.

    Raises:
        CliError: they were not in time; with the pod's trouble and the tail of its log.
    """
    for deployment in installed.operator_deployments(kube, namespace):
        name = deployment["metadata"]["name"]
        path = DEPLOYMENTS.path(namespace)
        changes = kube.watch(path, f"metadata.name={name}", timeout_s=OPERATOR_TIMEOUT_S)
        if not any(is_available(item) for _, item in changes):
            raise _operator_error(kube, namespace, deployment)


def is_available(deployment: Json) -> bool:
    """Return whether the newest revision of a Deployment runs, all of it."""
    status = deployment.get("status") or {}
    wanted = deployment["spec"].get("replicas", 1)
    is_current = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return is_current and all(
        status.get(count, 0) == wanted for count in ("replicas", "updatedReplicas", "availableReplicas")
    )


def _operator_error(kube: Kube, namespace: str, deployment: Json) -> CliError:
    labels = deployment["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    pods = kube.pods(selector, namespace)
    reasons = [f"{pod['metadata']['name']}: {trouble(pod)}" for pod in pods if trouble(pod)]
    tail = [line for pod in pods for line in _log_tail(kube, namespace, pod["metadata"]["name"])]
    details = "\n".join(f"  {line}" for line in reasons + tail)
    return CliError(
        f"The operator is not available after {OPERATOR_TIMEOUT_S:.0f} s." + (f"\n{details}" if details else ""),
        f"Look at it with `kubectl -n {namespace} describe pods -l {selector}`.",
    )


def _log_tail(kube: Kube, namespace: str, pod: str) -> list[str]:
    try:
        return list(kube.log_lines(pod, namespace=namespace, tail_lines=LOG_TAIL_LINES))
    except ApiError:
        return []


def _devcluster(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    if find_spec("longshore_devcluster") is None:
        raise CliError(
            "The embedded cluster is not installed.",
            "Install Longshore with its extra `devcluster`, or use your own cluster with --cluster current.",
        )
    command = [sys.executable, "-m", "longshore_devcluster", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise CliError(
            f"The embedded cluster did not answer `{arguments[0]}` within {START_TIMEOUT_S} s.",
            f"Its log is in {state.cluster_dir()}.",
        ) from error


def _kubeconfig() -> Path:
    return state.cluster_dir() / "kubeconfig"


def _words(done: subprocess.CompletedProcess[str]) -> str:
    reason = (done.stderr.strip() or done.stdout.strip()).removeprefix("error: ")
    if reason.startswith("Traceback"):
        reason = reason.splitlines()[-1]
    return reason or f"it ended with code {done.returncode}"
