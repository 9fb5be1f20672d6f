"""The pods of a job as local processes, without a cluster: for benchmarks that look at the runtime alone.

Ray reads its token settings when it is imported, so the coordinator is a process of its own like every other pod: a
benchmark starts itself again in it.
"""

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol

from longshore.api import contract
from longshore.api.environment import environment_pods
from longshore.api.names import Component
from longshore.api.spec import RLJobSpec
from longshore_devcluster.kubelet.addresses import Addresses
from longshore_runtime.cluster.ray_environment import RAY_ENVIRONMENT
from longshore_runtime.elastic.job_watch import NoOperator
from longshore_runtime.settings import Settings

_SPEC_FILE: Final = "spec.json"
_TOKENS: Final = "environment-tokens"
_NETWORKS: Final = {
    Component.COORDINATOR: 0, Component.WORKER: 1, Component.TRAINER: 2, Component.REWARD: 3, Component.ENVIRONMENT: 4,
}  # fmt: skip
"""Third number of a pod's address, by component."""
_OF_THE_DRIVER: Final = ("LD_LIBRARY_PATH",)
"""Variables by which programs find the libraries of GPUs on some machines."""


class Program(Protocol):
    """A process, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...
    def terminate(self) -> None: ...


def new_process(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], output: Path | None = None
) -> Program:
    """Start a module as a process of its own. With a file for its output it is in a session of its own."""
    command = [sys.executable, "-m", module, *arguments]
    if output is None:
        return subprocess.Popen(command, env=environment)
    with output.open("ab") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)


def in_coordinator() -> bool:
    """Return whether this process is the coordinator pod."""
    return os.environ.get(contract.ENV_COMPONENT) == Component.COORDINATOR


def run_pods(
    name: str, parser: ArgumentParser, measure: Callable[[Namespace], None], spec: RLJobSpec, *, pinned: bool = False
) -> int:
    """Start the pods of a benchmark, or, in its coordinator pod, call `measure`; return the exit status."""
    given = parser.parse_args()
    if in_coordinator():
        measure(given)
        return 0
    if pinned and (lacks := lacks_for_pinning(spec)):
        print(f"{name}: {lacks}", file=sys.stderr)
        return 2
    return run_in_coordinator(f"benchmarks.{name}", sys.argv[1:], spec, pinned=pinned)


def lacks_for_pinning(spec: RLJobSpec) -> str:
    """Return what this machine lacks to give every GPU pod its own core, in one sentence; empty if nothing."""
    num_pods, num_cores = len(_gpu_pods(spec)), len(os.sched_getaffinity(0))
    if find_spec("vllm") is None:
        return "vLLM is not installed: run `make setup`"
    if num_cores < num_pods:
        return f"{num_pods} pods with a processor core each are needed, and this process may use {num_cores}"
    return ""


def run_in_coordinator(
    module: str,
    arguments: Sequence[str],
    spec: RLJobSpec,
    *,
    pinned: bool = False,
) -> int:
    """Start GPU, reward and environment pods of a job, run `module` in its coordinator pod, and return its exit status.

    The coordinator pod ends if one of the others fails.

    Args:
        pinned: whether every GPU pod has a core of its own; the coordinator uses all of them.
    """
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ls-")))
        (root / "storage").mkdir()
        (root / _TOKENS).mkdir()
        hosted = environment_pods(spec.environments)
        for name in ("token", "reward-token", *(f"{_TOKENS}/{one.name}" for one in spec.environments)):
            (root / name).write_text(secrets.token_hex(32))
        (root / _SPEC_FILE).write_text(spec.model_dump_json(by_alias=True, exclude_unset=True), encoding="utf-8")
        network = stack.enter_context(contextlib.closing(Addresses())).network
        environment = _environment(root, network, Component.COORDINATOR, 0)
        coordinator = new_process(module, arguments, environment)
        stack.callback(coordinator.terminate)
        cores = sorted(os.sched_getaffinity(0))
        others = [(Component.REWARD, index) for index in range(spec.reward.pods)]
        others += [(Component.ENVIRONMENT, index) for index in range(len(hosted))]
        for number, (component, index) in enumerate([*_gpu_pods(spec), *others]):
            environment = _environment(root, network, component, index)
            if component is Component.ENVIRONMENT:
                settings = root / f"environment-{index}.json"
                settings.write_text(hosted[index].model_dump_json(), encoding="utf-8")
                environment[contract.ENV_ENVIRONMENT] = str(settings)
                environment[contract.ENV_ENVIRONMENT_TOKEN] = str(root / _TOKENS / hosted[index].name)
            log = root / f"{component}-{index}.log"
            pod = new_process("longshore_runtime", [component.value], environment, log)
            is_alone = pinned and component in (Component.WORKER, Component.TRAINER)
            os.sched_setaffinity(pod.pid, {cores[number]} if is_alone else set(cores))  # What it starts inherits them.
            stack.enter_context(_ended_together(pod, log, coordinator))
        return coordinator.wait()


@contextlib.contextmanager
def ray_head() -> Iterator[Settings]:
    """Run the Ray head in the coordinator within the block, with this process as its driver."""
    from longshore_runtime.cluster.ray_driver import ray_driver
    from longshore_runtime.cluster.ray_node import head_starter, start_head

    settings = Settings.from_env()
    with (
        head_starter() as starter,
        start_head(settings, starter),
        ray_driver(settings.ray_address, settings.pod_ip),
    ):
        yield settings


class LocalPods(NoOperator):
    """Implements `Assignments`: pods are where `run_in_coordinator` has put them."""

    def address_of(self, component: Component, index: int) -> str | None:
        network = Settings.from_env().pod_ip.rsplit(".", 2)[0]
        return _address(network, component, index)


def _gpu_pods(spec: RLJobSpec) -> list[tuple[Component, int]]:
    """Return worker pods, and those that only train."""
    num_trainers = spec.trainer_workers.replicas if spec.trainer_workers else 0
    workers = [(Component.WORKER, index) for index in range(spec.workers.replicas)]
    return [*workers, *((Component.TRAINER, index) for index in range(num_trainers))]


def _address(network: str, component: Component, index: int) -> str:
    """Return the address of a pod, in the network of this run, so that two runs do not meet."""
    return f"{network}.{_NETWORKS[component]}.{index + 1}"


def _environment(root: Path, network: str, component: Component, index: int) -> dict[str, str]:
    libraries = {name: os.environ[name] for name in _OF_THE_DRIVER if name in os.environ}
    return {
        **RAY_ENVIRONMENT,
        **libraries,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        contract.ENV_JOB_NAME: "bench",
        contract.ENV_JOB_NAMESPACE: "default",
        contract.ENV_JOB_UID: "bench",
        contract.ENV_ATTEMPT: "1",
        contract.ENV_COMPONENT: component.value,
        contract.ENV_INDEX: str(index),
        contract.ENV_POD_NAME: f"bench-{component.value}-{index}",
        contract.ENV_POD_IP: _address(network, component, index),
        contract.ENV_COORDINATOR_ADDRESS: _address(network, Component.COORDINATOR, 0),
        contract.ENV_CONFIG: str(root / _SPEC_FILE),
        contract.ENV_STORAGE: str(root / "storage"),
        contract.ENV_TERMINATION_LOG: str(root / f"{component.value}-{index}.end"),
        contract.ENV_REWARD_TOKEN: str(root / "reward-token"),
        contract.ENV_ENVIRONMENT_TOKENS: str(root / _TOKENS),
        contract.ENV_RAY_AUTH_MODE: "token",
        contract.ENV_RAY_TOKEN_PATH: str(root / "token"),
    }


@contextlib.contextmanager
def _ended_together(pod: Program, log: Path, coordinator: Program) -> Iterator[None]:
    """End the coordinator if the pod fails, and the pod with this block."""

    def watch() -> None:
        if pod.wait() and coordinator.poll() is None:
            print(log.read_text(encoding="utf-8", errors="replace"), file=sys.stderr)
            coordinator.terminate()

    thread = threading.Thread(target=watch, name=log.stem, daemon=True)
    thread.start()
    try:
        yield
    finally:
        pod.terminate()
        thread.join()
