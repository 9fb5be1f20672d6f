"""A job as the API server stores it, without the fields that are not needed."""

import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from longshore.api.rljob import RLJob
from longshore.api.spec import RLJobSpec
from longshore.api.status import Phase, RLJobStatus
from longshore_operator.stored_status import StoredStatus, read_status

_NEEDED_METADATA: Final = (
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "finalizers",
    "labels",
)  # fmt: skip
_STARTING: Final = frozenset({Phase.PENDING, Phase.STARTING})
_MAX_KEPT_BYTES: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job that was read, or was last written."""

    metadata: dict[str, Any]
    spec: RLJobSpec | ValidationError
    status: StoredStatus
    is_small: bool

    @property
    def version(self) -> str:
        """Resource version."""
        return str(self.metadata["resourceVersion"])

    @property
    def runs_elsewhere(self) -> bool:
        """Whether the status is written by this operator only while the job waits."""
        return isinstance(self.spec, RLJobSpec) and self.spec.runs_elsewhere

    def may_be_kept(self, next_status: RLJobStatus) -> bool:
        """Return whether to remember the job until it changes.

        A job that starts is looked at often, but a large one would take too much memory.
        """
        return self.is_small and next_status.phase in _STARTING and not isinstance(self.spec, ValidationError)

    def written(self, status: RLJobStatus, version: str) -> "StoredJob":
        """Return the job after its status was written on top of this version."""
        return replace(self, metadata=self.metadata | {"resourceVersion": version}, status=StoredStatus(status))


def read_job(found: dict[str, Any], now: datetime) -> StoredJob:
    """Parse a job that was read; a spec that cannot be parsed is replaced by the reason."""
    metadata = {name: found["metadata"][name] for name in _NEEDED_METADATA if name in found["metadata"]}
    spec, is_small = found.get("spec"), False
    if not isinstance(spec, ValidationError):
        is_small = len(json.dumps([spec, metadata])) <= _MAX_KEPT_BYTES
        try:
            spec = RLJob.model_validate({"metadata": metadata, "spec": spec}).spec
        except ValidationError as error:
            spec = error
    return StoredJob(metadata, spec, read_status(found.get("status"), now), is_small)
