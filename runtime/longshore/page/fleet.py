"""What the page of all jobs shows."""

from longshore.page.view import PageModel


class FleetJob(PageModel):
    """A job in one row."""

    namespace: str
    name: str
    phase: str
    is_finished: bool
    strategy: str
    created: str
    step: int
    steps: int
    reward: float | None
    bubble_share: float | None
    """Bubble share; None before the first round."""
    gpus: dict[str, int]
    """That it holds, by role."""
    demand: int
    """GPUs that its workers and trainers ask for."""
    queue: str
    """Queue of Kueue; empty: none."""
    waits_for: str
    """The conditions that hold it up, in the words of the operator."""
    failure: str
    """Why it failed, in the words of the operator; empty: it did not."""
    alarms: tuple[str, ...]


class FleetMoment(PageModel):
    """GPUs at a time."""

    time_s: float
    gpus: dict[str, int]
    """By role, and `waiting`: those that jobs without any ask for."""


class FleetView(PageModel):
    """All jobs, and GPUs since the page was opened first."""

    written_s: float
    namespace: str | None
    """Namespace that is shown; None: all are."""
    jobs: tuple[FleetJob, ...]
    """Those that need attention first, then by age."""
    history: tuple[FleetMoment, ...]
