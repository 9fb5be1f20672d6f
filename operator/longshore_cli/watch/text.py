"""The watch as plain lines, for logs and pipes: one per finished step, without control characters."""

from longshore.api.status import Phase
from longshore_cli import format as fmt
from longshore_cli.watch.history import JobChange, Line, StepProgress, WatchedStep
from longshore_client.view import EventView, JobView, steps_text, verdict


def line_text(line: Line) -> str:
    """Return a finished step or a notice as one line."""
    match line:
        case JobChange(text) | StepProgress(text):
            return text
        case WatchedStep():
            return _step_text(line)


def event_text(event: EventView) -> str:
    """Return a Kubernetes event as one line."""
    return f"event {event.type} {event.reason}: {event.message}"


def ending_text(view: JobView) -> str:
    """Return how the job ended."""
    if view.phase is Phase.SUCCEEDED:
        runtime = view.runtime
        learned = fmt.change(runtime.held_out.before, runtime.held_out.latest)
        more = runtime.step - view.steps
        deferred = f" and {more} for deferred prompts" if more > 0 else ""
        return (
            f"Succeeded after {fmt.count(min(runtime.step, view.steps), 'step')}{deferred}; held-out reward {learned}"
        )
    return f"Failed: {verdict(view)}"


def _step_text(done: WatchedStep) -> str:
    """Return at most 80 characters with the usual figures; `tokens` has the mean and the longest response."""
    lengths = done.response_tokens
    parts = [
        f"step {steps_text(done.step, done.steps)}",
        f"{done.kind}" if done.kind else "",
        f"reward {fmt.reward(done.reward)}",
        f"took {fmt.duration(done.step_s)}" if done.step_s else "",
        f"rollout {fmt.duration(done.rollout_s)}" if done.rollout_s else "",
        f"tokens {lengths.mean:.0f}/{lengths.max}",
    ]
    return "  ".join(part for part in parts if part)
