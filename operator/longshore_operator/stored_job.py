"""A job as the API server stores it, which this version may be unable to read."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from longshore.api.rljob import RLJob
from longshore.api.spec import RLJobSpec
from longshore_operator.stored_status import StoredStatus, read_status

_NEEDED_METADATA = (
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "labels",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job from the API server, without the fields that are not needed."""

    metadata: dict[str, Any]
    spec: RLJobSpec | ValidationError
    status: StoredStatus


def read_job(found: dict[str, Any], now: datetime) -> StoredJob:
    """Read a job; its spec is the reason if it cannot be read."""
    metadata = {name: found["metadata"][name] for name in _NEEDED_METADATA if name in found["metadata"]}
    spec = found.get("spec")
    if not isinstance(spec, ValidationError):
        try:
            spec = RLJob.model_validate({"metadata": metadata, "spec": spec}).spec
        except ValidationError as error:
            spec = error
    return StoredJob(metadata, spec, read_status(found.get("status"), now))
