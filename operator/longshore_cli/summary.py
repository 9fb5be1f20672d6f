"""What a finished job has shown, in figures: pure functions from what was seen to a table."""

from datetime import datetime
from typing import Final

from rich.table import Table
from rich.text import Text

from longshore.api.runtime_status import KindCount, RuntimeStatus
from longshore_cli import format as fmt
from longshore_cli.comparison import Comparison
from longshore_cli.watch import words
from longshore_cli.watch.history import WatchHistory
from longshore_client.view import assigned

Row = tuple[str, str]

_COMPARED: Final = (
    "the same job in the same cluster, one after the other; not the time of a whole job: start, evaluations and "
    "checkpoints are left out"
)


def rows(history: WatchHistory, comparison: Comparison | None = None) -> list[Row]:
    """Return (what, figure) in the order in which people ask."""
    runtime = history.view.runtime
    found = [
        ("held-out reward", fmt.change(runtime.held_out.before, runtime.held_out.latest)),
        ("  longest quarter of the prompts", fmt.change(runtime.held_out.long_before, runtime.held_out.long_latest)),
        ("training reward, last step", fmt.reward(runtime.reward)),
        ("short rounds", _rounds(runtime.short)),
        ("long rounds", _rounds(runtime.long)),
        ("full rounds", _rounds(runtime.full)),
        *(_compared(comparison) if comparison is not None else ()),
        ("bubble, last rollout", fmt.share(runtime.bubble_share)),
        ("draws", _draws(runtime)),
        ("factors", words.factors(runtime.auto) if runtime.auto is not None else ""),
        ("last assignment", assigned(history.view)),
        ("data types", _data_types(runtime)),
        ("warm start", _warm_start(runtime)),
        ("time", _times(history)),
        ("final model", runtime.final_model or ""),
    ]
    return [(what, figure) for what, figure in found if figure and figure != fmt.reward(None)]


def table(history: WatchHistory, comparison: Comparison | None = None) -> Table:
    """Return the rows as a table."""
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="bold")
    drawn.add_column()
    for what, figure in rows(history, comparison):
        drawn.add_row(what, Text(figure))
    return drawn


def lines(history: WatchHistory, comparison: Comparison | None = None) -> str:
    """Return the rows as plain text."""
    return "\n".join(f"{what:<34}{figure}" for what, figure in rows(history, comparison))


def total_s(history: WatchHistory) -> float | None:
    """Return the seconds from the creation of the job to its end, since resuming resets its start time."""
    created, completed = history.view.created, history.view.status.completion_time
    if created is None or completed is None:
        return None
    return (datetime.fromisoformat(completed) - datetime.fromisoformat(created)).total_seconds()


def _compared(comparison: Comparison) -> tuple[Row, ...]:
    return (
        ("seconds per step", str(comparison)),
        ("  decode steps of an engine", comparison.decode_steps),
        ("  what is compared", _COMPARED),
        ("  what to know of it", comparison.note),
    )


def _rounds(counted: KindCount) -> str:
    if not counted.rounds:
        return ""
    parts = [fmt.count(counted.rounds, "round"), f"{fmt.duration(counted.rollout_s / counted.rounds)} of rollout each"]
    if counted.samples:
        parts.append(f"{1000 * counted.rollout_s / counted.samples:.1f} ms a trained response")
    if counted.preemptions:
        parts.append(fmt.count(counted.preemptions, "preemption"))
    return ", ".join(parts)


def _draws(runtime: RuntimeStatus) -> str:
    draws = runtime.draws
    parts = [f"{draws.trained:,} trained", f"{draws.zero_variance:,} of them without spread"]
    if draws.rejected:
        parts.append(f"{draws.rejected:,} replaced")
    parts.append(f"{draws.deferred:,} left in the queue")
    return ", ".join(parts)


def _data_types(runtime: RuntimeStatus) -> str:
    types = runtime.data_types
    if types is None:
        return ""
    measured = f"; bfloat16 was measured as {types.speedup:g} times as fast" if types.speedup is not None else ""
    return f"engines {types.engines}, trainers {types.trainers}{measured}"


def _warm_start(runtime: RuntimeStatus) -> str:
    warm_start = runtime.warm_start
    if warm_start is None:
        return ""
    took = fmt.duration(warm_start.seconds)
    if warm_start.cached:
        took = f"there already (it had taken {took})"
    if warm_start.loss is None or warm_start.first_loss is None:
        return took
    steps = fmt.count(warm_start.step, "step")
    return f"{steps}, loss {warm_start.first_loss:.3g} → {warm_start.loss:.3g}, {took}"


def _times(history: WatchHistory) -> str:
    in_all_s = total_s(history)
    parts = [f"{fmt.duration(in_all_s)} in all"] if in_all_s is not None else []
    split = [
        f"{words.in_words(activity)} {fmt.duration(seconds)}"
        for activity, seconds in sorted(history.activity_s.items(), key=lambda item: -item[1])
        if seconds >= 0.5
    ]
    return ": ".join(filter(None, [*parts, ", ".join(split)]))
