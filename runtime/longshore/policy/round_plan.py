"""What a round policy decides before a round: what to start with, what makes the batch, and what may run at once."""

from dataclasses import dataclass
from enum import Enum

from longshore.api.round_status import RoundKind
from longshore.policy.draws import Draw


@dataclass(frozen=True)
class AdmittedDraw:
    """A draw to start: which responses to sample, and which of its responses already ended earlier."""

    draw: Draw
    launch: tuple[int, ...]
    finished: tuple[int, ...] = ()


class Acceptance(Enum):
    """Rules by which a group counts."""

    SERVED = "served"
    """R0 finished responses: a slow verifier never decides what is trained on."""
    TRAINABLE = "trainable"
    """Rewards that differ (DAPO, dynamic sampling)."""


@dataclass(frozen=True)
class RoundPlan:
    """Decisions of a round policy before a round."""

    kind: RoundKind
    num_groups: int
    """Groups that make the batch."""
    admissions: tuple[AdmittedDraw, ...]
    """Groups to start with, in this order."""
    num_candidates: int
    """Groups to hold: accepted ones and those that can still be; one that is consumed otherwise is replaced."""
    due: frozenset[Draw] = frozenset()
    """Draws without which the round does not end."""


@dataclass(frozen=True)
class Gates:
    """Which admitted requests may run. Both gates together: a request passes when each lets it."""

    frontier_width: int | None = None
    """F_w: groups in service at once (RolloutPipe, section 3.3); None: all."""
    max_running: int | None = None
    """Requests that all engines have at once; None: all. Episodes in their environments are on none."""
