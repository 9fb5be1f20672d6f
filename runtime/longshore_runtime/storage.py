"""Paths in the storage of a job. Pods may mount it in different places, so only relative paths travel between them."""

import errno
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from longshore.api import contract, names
from longshore_runtime.errors import UserError
from longshore_runtime.settings import Settings

_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


@dataclass(frozen=True)
class JobStorage:
    """The mounted storage of this pod, and where the job writes in it."""

    root: Path
    output: str

    @classmethod
    def from_env(cls, output: str) -> "JobStorage":
        """Return the storage as mounted in this pod."""
        return cls(Path(os.environ[contract.ENV_STORAGE]), output)

    @property
    def output_dir(self) -> Path:
        """Directory of everything that the job writes."""
        return self.resolve(self.output)

    def resolve(self, relative: str) -> Path:
        """Return a path in the storage; refuses to leave it."""
        path = (self.root / relative).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise UserError(f"path {relative!r} leaves the storage of the job: use a path inside it")
        return path

    def require_writable(self) -> None:
        """Make the output directory and write to it, before anything depends on it.

        Raises:
            UserError: the volume does not let this process write; with what to change.
        """
        try:
            self.output_dir.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.output_dir).close()
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            raise UserError(self._refusal(error)) from error

    def _refusal(self, error: OSError) -> str:
        """Return which directory refuses, whose it is, and what to do.

        A file cannot be made where the nearest directory refuses.
        """
        directory = next(path for path in (self.output_dir, *self.output_dir.parents) if _is_visible(path))
        shown = "its root" if directory == self.root.resolve() else f"directory {self.relative(directory)!r}"
        if error.errno == errno.EROFS:
            return "storage: the volume is read-only: use a claim that can be written (accessModes of the claim)"
        found = directory.stat()
        return (
            f"storage: the volume cannot be written by user {os.getuid()}, group {os.getgid()}, as which the pods run "
            f"({shown} belongs to {found.st_uid}:{found.st_gid}, mode {found.st_mode & 0o7777:o}): set "
            f"template.spec.securityContext.fsGroup of coordinator, workers and reward to a group that may write it, "
            f"or change the owner on the file server"
        )

    def relative(self, path: Path) -> str:
        """Return the form in which a path travels to other pods."""
        return str(path.resolve().relative_to(self.root.resolve()))


def _is_visible(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        return False


def job_storage(settings: Settings, configured_output: str) -> JobStorage:
    """Return the storage of a job as the coordinator sees it."""
    output = configured_output or names.default_output(settings.job, settings.job_uid)
    return JobStorage(settings.storage, output)
