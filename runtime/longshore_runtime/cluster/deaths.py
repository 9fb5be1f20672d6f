"""Find out why an actor's process died: Ray says only that it is gone.

    actor (fork) ──dies──► fork server reaps it, and notes signal and peak memory in a file of the node's directory
    driver ──asks──► a new actor in the same pod, which reads the file (`find_death`)

Nothing is found where the pod is gone, too; the operator reports the end of a pod. An engine's tensor-parallel workers
are no children of the fork server, but vLLM ends the engine when one of them dies.
"""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import structlog

from longshore.api import contract
from longshore.api.names import Component

log = structlog.get_logger()

ENV_FILE: Final = "LONGSHORE_DEATHS"
"""Environment variable of a node's processes: the file with the deaths."""
_ANSWER_LIMIT_S: Final = 30.0
_NOTE_LIMIT_S: Final = 10.0
"""Seconds to wait for a note, because the driver may learn of a death before the fork server does."""
_POLL_S: Final = 0.05
_OOM_COUNTS: Final = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Files of the container's control group with `oom_kill`, in versions 2 and 1."""
_FROM_OUTSIDE: Final = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
"""Exit codes that do not tell whose fault a death was."""
_PID: Final = re.compile(r"^\s*pid: (\d+)$", re.MULTILINE)
_ADDRESS: Final = re.compile(r"^\s*ip: (\S+)$", re.MULTILINE)
_NODE_IS_GONE: Final = "its node has died"
"""Text in the message of Ray's ActorDiedError when the node is gone."""


@dataclass(frozen=True)
class Death:
    """End of a process."""

    pid: int
    exit_code: int
    """Exit code as of `subprocess`: the negative number of the signal that killed it, or its exit status."""
    peak_bytes: int
    """Largest resident memory that it had."""
    is_out_of_memory: bool = False
    """Whether the kernel has killed a process of its container, which had reached its memory limit, and no death before
    this one explains that."""

    def __str__(self) -> str:
        used = f"after using {self.peak_bytes / (1 << 30):.1f} GiB"
        if self.exit_code >= 0:
            return f"exited with code {self.exit_code} {used}"
        number = -self.exit_code
        try:
            name = f" ({signal.Signals(number).name})"
        except ValueError:  # A real-time signal.
            name = ""
        return f"was killed by signal {number}{name} {used}"

    def is_lack_of_memory(self, memory_bytes: int) -> bool:
        """Return whether the kernel probably killed it to free memory, in a pod that may use `memory_bytes`."""
        used_most = 2 * self.peak_bytes >= memory_bytes
        return self.exit_code == -signal.SIGKILL and (self.is_out_of_memory or used_most)

    def is_own_fault(self, memory_bytes: int, *, has_peers: bool) -> bool:
        """Return whether the same work would probably end the same way: nobody else has stopped the process.

        NCCL aborts a process that has lost one of its peers. Without peers, Ray has aborted it after a crash.
        """
        if self.exit_code == -signal.SIGABRT:
            return not has_peers
        return self.exit_code not in _FROM_OUTSIDE or self.is_lack_of_memory(memory_bytes)


class DeathNotes:
    """Reaps the children of this process, and notes how they ended.

    The peak of a process does not tell whether it was killed for memory, because engines and trainers share the limit
    of their pod. But the kernel counts such kills.
    """

    def __init__(self, file: str | None, oom_counts: Sequence[str] = _OOM_COUNTS) -> None:
        """Append the notes to `file`; None: nowhere."""
        self._file = file
        self._oom_counts = oom_counts
        self._num_explained = num_oom_kills(oom_counts)
        """Kills for the memory limit, up to now, of which a child was the victim or which were there before."""
        self._is_reaping = self._is_asked = False

    def reap(self, *_: object) -> None:
        """Reap and note the children that have ended; a handler of SIGCHLD."""
        self._is_asked = True
        if self._is_reaping:
            return  # This handler has interrupted itself: the outer call goes on.
        self._is_reaping = True
        try:
            while self._is_asked:
                self._is_asked = False
                self._reap_ended()
        finally:
            self._is_reaping = False

    def _reap_ended(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            exit_code = os.waitstatus_to_exitcode(status)
            is_killed = exit_code == -signal.SIGKILL
            is_out_of_memory = is_killed and num_oom_kills(self._oom_counts) > self._num_explained
            self._num_explained += is_out_of_memory
            self._note(Death(pid, exit_code, usage.ru_maxrss * 1024, is_out_of_memory))

    def _note(self, death: Death) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError), open(self._file, "a", encoding="utf-8") as lines:  # noqa: PTH123 - in a handler
                lines.write(json.dumps(asdict(death)) + "\n")


def num_oom_kills(files: Sequence[str]) -> int:
    """Return how many processes of this container the kernel has killed for its memory limit; 0 if it does not say."""
    for name in files:
        with contextlib.suppress(OSError), open(name, encoding="ascii") as file:  # noqa: PTH123 - in a handler
            counts = dict(line.split(maxsplit=1) for line in file)
            return int(counts.get("oom_kill", 0))
    return 0


def noted_death(file: Path, pid: int) -> Death | None:
    """Return the newest death of a process with this number."""
    if not file.exists():
        return None
    deaths = [Death(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    return next((death for death in reversed(deaths) if death.pid == pid), None)


def pid_of(error: BaseException) -> int | None:
    """Return the number of the process that Ray's ActorDiedError is about."""
    found = _PID.search(str(error))
    return None if found is None else int(found.group(1))


def find_death(error: BaseException, pod: int, component: Component) -> Death | None:
    """Ask the pod of a dead actor how it ended; None: the pod does not answer, or does not know.

    Args:
        error: Ray's error of the last call of the actor.
        pod: index of its pod among those of the component.
        component: WORKER or TRAINER.
    """
    import ray

    from longshore_runtime.cluster.placement import placement

    pid = pid_of(error)
    if pid is None or _NODE_IS_GONE in str(error):
        return None
    # A pod that has come back since knows nothing of it.
    address = _ADDRESS.search(str(error))
    witness = placement(pod, component=component).remote(ray.remote(num_cpus=0)(_Witness))
    try:
        found: Death | None = ray.get(
            witness.death_of.remote(pid, address.group(1) if address else ""), timeout=_ANSWER_LIMIT_S
        )
    except ray.exceptions.RayError as failure:  # Among them GetTimeoutError.
        log.warning("the pod does not say how a process ended", pid=pid, reason=type(failure).__name__)
        return None
    finally:
        ray.kill(witness)
    return found


class _Witness:
    """An actor in the pod of one that died."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)

    def death_of(self, pid: int, address: str) -> Death | None:
        file = os.environ.get(ENV_FILE) if os.environ.get(contract.ENV_POD_IP) == address else None
        deadline_s = time.monotonic() + _NOTE_LIMIT_S
        while file is not None and time.monotonic() < deadline_s:
            if (death := noted_death(Path(file), pid)) is not None:
                return death
            time.sleep(_POLL_S)  # Polled, since the fork server answers nobody.
        return None
