"""Paths in the storage of a job. Pods may mount it in different places, so only relative paths travel between them."""

import os
from dataclasses import dataclass
from pathlib import Path

from longshore.api import contract, names
from longshore_runtime.errors import UserError
from longshore_runtime.settings import Settings


@dataclass(frozen=True)
class JobStorage:
    """The mounted storage of this pod, and where the job writes in it."""

    root: Path
    output: str

    @classmethod
    def from_env(cls, output: str) -> "JobStorage":
        """The storage as mounted in this pod."""
        return cls(Path(os.environ[contract.ENV_STORAGE]), output)

    @property
    def output_dir(self) -> Path:
        """Directory of everything that the job writes."""
        return self.resolve(self.output)

    def resolve(self, relative: str) -> Path:
        """A path in the storage; refuses to leave it."""
        path = (self.root / relative).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise UserError(f"path {relative!r} leaves the storage of the job: use a path inside it")
        return path

    def relative(self, path: Path) -> str:
        """The form in which a path travels to other pods."""
        return str(path.resolve().relative_to(self.root.resolve()))


def job_storage(settings: Settings, configured_output: str) -> JobStorage:
    """The storage of a job as the coordinator sees it."""
    output = configured_output or names.default_output(settings.job, settings.job_uid)
    return JobStorage(settings.storage, output)
