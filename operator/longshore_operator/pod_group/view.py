"""What the operator sees of the PodGroup of one job."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longshore.api.status import WITHOUT_PODS, RLJobStatus
from longshore_operator.identity import ANNOTATION_FINGERPRINT


@dataclass(frozen=True, slots=True)
class PodGroupView:
    """State of the PodGroup of a job that wants one."""

    found: Mapping[str, Any] | None = None
    """The PodGroup of the job."""
    mistake: str = ""
    """Why it cannot be made, one sentence for people."""

    @property
    def is_leaving(self) -> bool:
        """Whether it is being deleted."""
        return self.found is not None and "deletionTimestamp" in self.found["metadata"]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the manifest that the PodGroup was made from."""
        metadata = self.found["metadata"] if self.found is not None else {}
        return str((metadata.get("annotations") or {}).get(ANNOTATION_FINGERPRINT, ""))

    def keeps_waiting(self, status: RLJobStatus) -> bool:
        """Whether the job may not start. A job that has pods keeps them."""
        return bool(self.mistake) and (status.attempt == 0 or status.phase in WITHOUT_PODS)
