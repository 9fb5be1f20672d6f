"""Track who owns an output directory: the coordinator that began last writes, and one that began earlier stops.

The operator never runs two coordinators of a job. But two jobs may name the same `storage.output`, and neither operator
nor API server knows whether that is meant: a job may continue what an earlier one has left.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from longshore_runtime.errors import Interrupted, UserError
from longshore_runtime.process.durable import write_whole
from longshore_runtime.settings import Settings

_FILE: Final = "coordinator.json"
_BEFORE: Final = "earlier_job_uids"


@dataclass(frozen=True)
class OutputOwner:
    """A coordinator: an attempt of a job."""

    job: str
    job_uid: str
    attempt: int

    @classmethod
    def of(cls, settings: Settings) -> "OutputOwner":
        """Return the coordinator with these settings."""
        return cls(settings.job, settings.job_uid, settings.attempt)

    def take(self, output_dir: Path) -> None:
        """Begin to write to a directory.

        Raises:
            UserError, Interrupted: as `require_own`. A job that lost the directory to another does not take it back.
        """
        found = _read(output_dir)
        before = list(found.get(_BEFORE, ()))
        if found.get("job_uid") == self.job_uid and found.get("attempt", 0) > self.attempt:
            raise _later_attempt(found)
        if self.job_uid in before:
            raise _other_job(found)
        if found.get("job_uid", self.job_uid) != self.job_uid:
            before.append(found["job_uid"])
        write_whole(output_dir / _FILE, orjson.dumps(asdict(self) | {_BEFORE: before}))

    def require_own(self, output_dir: Path) -> None:
        """Check that no other coordinator has begun to write to the directory since `take`.

        Raises:
            UserError: that of another job has.
            Interrupted: that of a later attempt has, so that this one is thought to be gone.
        """
        found = _read(output_dir)
        if not found or (found.get("job_uid"), found.get("attempt")) == (self.job_uid, self.attempt):
            return
        raise _later_attempt(found) if found.get("job_uid") == self.job_uid else _other_job(found)


def _read(output_dir: Path) -> dict[str, Any]:
    """Return who writes to a directory; empty: nobody yet, or somebody tidies up."""
    try:
        found = orjson.loads((output_dir / _FILE).read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _later_attempt(found: Mapping[str, Any]) -> Interrupted:
    return Interrupted(f"attempt {found.get('attempt')} of the job writes to its output")


def _other_job(found: Mapping[str, Any]) -> UserError:
    return UserError(
        f"storage.output: job {found.get('job')} has begun to write here, too, from the newest checkpoint on; give "
        "every job an output of its own, or start one after the other has ended"
    )
