"""Whose output a directory is. The coordinator that began last writes there; one that began earlier has to stop.

The operator never runs two coordinators of a job. But two jobs may name the same `storage.output`, and neither operator
nor API server knows whether that is meant: a job may continue what an earlier one has left.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson

from longshore_runtime.durable import write_whole
from longshore_runtime.errors import Interrupted, UserError
from longshore_runtime.settings import Settings

_FILE: Final = "coordinator.json"


@dataclass(frozen=True)
class OutputOwner:
    """A coordinator: an attempt of a job."""

    job: str
    job_uid: str
    attempt: int

    @classmethod
    def of(cls, settings: Settings) -> "OutputOwner":
        """The coordinator with these settings."""
        return cls(settings.job, settings.job_uid, settings.attempt)

    def take(self, output_dir: Path) -> None:
        """Begin to write to a directory."""
        write_whole(output_dir / _FILE, orjson.dumps(asdict(self)))

    def require_own(self, output_dir: Path) -> None:
        """Check that no other coordinator has begun to write to the directory since `take`.

        Raises:
            UserError: that of another job has.
            Interrupted: that of a later attempt has, so that this one is thought to be gone.
        """
        try:
            found = orjson.loads((output_dir / _FILE).read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return  # Somebody tidies up.
        if not isinstance(found, dict) or found == asdict(self):
            return
        if found.get("job_uid") == self.job_uid:
            raise Interrupted(f"attempt {found.get('attempt')} writes to the output")
        raise UserError(
            f"storage.output: job {found.get('job')} has begun to write here, too, from the newest checkpoint on; give "
            "every job an output of its own, or start one after the other has ended"
        )
