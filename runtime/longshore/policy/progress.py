"""How far a round is: what has finished, what runs, and what it still has to launch."""

from dataclasses import dataclass

from longshore.api.round_status import RoundKind


@dataclass(frozen=True)
class RoundProgress:
    """Counts of requests, and of the groups that they make."""

    kind: RoundKind
    num_launched: int
    num_finished: int
    num_held: int = 0
    """Requests to launch that wait for a gate."""
    num_returning: int = 0
    """Launched requests that wait for a gate: the next turns of episodes."""
    num_expected: int = 0
    """Requests that will replace groups without a gradient, as far as this can be foreseen."""
    num_accepted: int = 0
    """Groups that the batch has."""
    num_groups: int = 1
    """Groups that make the batch."""

    @property
    def num_requests(self) -> int:
        """Requests of the whole round: launched, or still to be launched."""
        return self.num_launched + self.num_held + self.num_expected

    @property
    def fraction_finished(self) -> float:
        """Finished over all requests of the round."""
        return self.num_finished / self.num_requests if self.num_requests else 0.0
