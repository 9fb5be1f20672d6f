"""Where the files of pods are.

The run directory has a short path (`/tmp/ls…`), because programs put Unix sockets into the directories of their pods
and a socket's path is limited to 107 bytes. Logs stay in the data directory, until their pod object goes.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

_MEMORY_ROOT = Path("/dev/shm")


@dataclass(frozen=True)
class PodLayout:
    """The paths of one pod, below the run directory and the log directory of the cluster."""

    run_dir: Path
    log_dir: Path
    uid: str

    @property
    def root(self) -> Path:
        """The pod's own directory."""
        return self.run_dir / self._short

    @property
    def home(self) -> Path:
        """HOME and working directory of the pod's containers."""
        return self.root / "home"

    @property
    def tmp(self) -> Path:
        """TMPDIR of the pod's containers."""
        return self.root / "tmp"

    def volume(self, name: str) -> Path:
        """Return the directory of a volume."""
        return self.root / "v" / name

    def memory_volume(self, name: str) -> Path:
        """Return the directory of a memory-backed emptyDir, on a RAM file system where the machine has one."""
        if _MEMORY_ROOT.is_dir():
            return self._memory_root / name
        return self.volume(name)

    def termination_message(self, container: str) -> Path:
        """Return the file that stands for `terminationMessagePath`."""
        return self.root / "t" / container

    def kubeconfig(self, volume: str) -> Path:
        """Return the kubeconfig that uses the service-account token of a projected volume."""
        return self.root / "k" / volume

    def log(self, container: str, restart: int) -> Path:
        """Return the log of one instance of a container."""
        return self.log_dir / self.uid / container / f"{restart}.log"

    def create(self) -> None:
        """Make the directories that every pod has."""
        for path in (self.home, self.tmp, self.root / "t", self.root / "v"):
            path.mkdir(parents=True, exist_ok=True)

    def remove_volumes(self) -> None:
        """Remove everything but the logs."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self._memory_root, ignore_errors=True)

    def remove_logs(self) -> None:
        """Remove the logs."""
        shutil.rmtree(self.log_dir / self.uid, ignore_errors=True)

    @property
    def _short(self) -> str:
        return hashlib.blake2s(self.uid.encode(), digest_size=4).hexdigest()

    @property
    def _memory_root(self) -> Path:
        return _MEMORY_ROOT / self.run_dir.name / self._short


def create_run_dir(run_dir: Path) -> None:
    """Make the run directory and its counterpart in memory, closed to other users."""
    run_dir.mkdir(mode=0o700, exist_ok=True)
    if _MEMORY_ROOT.is_dir():
        (_MEMORY_ROOT / run_dir.name).mkdir(mode=0o700, exist_ok=True)


def remove_strangers(run_dir: Path, log_dir: Path, known_uids: set[str]) -> None:
    """Remove the files of pods that exist no more."""
    layouts = [PodLayout(run_dir, log_dir, uid) for uid in known_uids]
    kept = {layout.root.name for layout in layouts}
    for directory, names in ((run_dir, kept), (_MEMORY_ROOT / run_dir.name, kept), (log_dir, known_uids)):
        for entry in directory.iterdir() if directory.is_dir() else ():
            if entry.name not in names:
                shutil.rmtree(entry, ignore_errors=True)


def remove_if_empty(run_dir: Path) -> None:
    """Remove the run directory if no pod has files in it."""
    for directory in (_MEMORY_ROOT / run_dir.name, run_dir):
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()


def remove_run_dir(run_dir: Path) -> None:
    """Remove what all pods of a cluster left outside the data directory."""
    shutil.rmtree(run_dir, ignore_errors=True)
    shutil.rmtree(_MEMORY_ROOT / run_dir.name, ignore_errors=True)
