"""When an ended container starts again (Kubernetes docs, "Pod Lifecycle", container restart policy)."""

from dataclasses import dataclass

_CAP_FACTOR = 30
_RESET_FACTOR = 60


def should_restart(policy: str, exit_code: int) -> bool:
    """Return whether a container that ended with this code starts again under a restart policy."""
    if policy == "OnFailure":
        return exit_code != 0
    return policy == "Always"


@dataclass
class Backoff:
    """Growing delays between restarts: none before the first, then the base, doubled each time up to 30 bases.

    With Kubernetes' base of 10 s the cap is 5 minutes; a container that ran for 60 bases (10 minutes) starts afresh.
    """

    base_s: float = 10.0
    num_restarts: int = 0

    def next_delay_s(self, ran_s: float) -> float:
        """Return the delay before the next start of a container that has just run for `ran_s` seconds."""
        if ran_s >= _RESET_FACTOR * self.base_s:
            self.num_restarts = 0
        self.num_restarts += 1
        if self.num_restarts == 1:
            return 0.0
        return min(self.base_s * 2.0 ** min(self.num_restarts - 2, 16), _CAP_FACTOR * self.base_s)
