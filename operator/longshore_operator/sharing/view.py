"""What a decision about a job sees of its sharing group."""

from dataclasses import dataclass
from datetime import datetime

from longshore.api.sharing import SharingStatus


@dataclass(frozen=True, slots=True)
class SharingView:
    """A job and its sharing group."""

    group: str
    turns: SharingStatus | None = None
    """Turns of the current attempt; None: it is no member."""
    is_on_trial: bool = False
    """Whether its steps are being measured."""
    overdue_at: datetime | None = None
    """When its pods are deleted unless it returns the turn; None: no other job waits."""
    refusal: str = ""
    """Why the job must not have pods; empty: it may."""
    mistake: str = ""
    """Why turns are neither granted nor recalled; empty: they are."""
    waits_for: str = ""
    """What keeps the whole group from its next turn, for people; empty: nothing but the turns of its jobs."""
