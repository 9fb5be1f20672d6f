"""The live picture of a job, drawn from its history by pure functions."""

from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from longshore.api.round_status import RoundKind
from longshore.api.runtime_status import KindCount, Progress
from longshore.api.status import ConditionStatus, Phase, PodCounts
from longshore_cli import format as fmt
from longshore_cli.watch import words
from longshore_cli.watch.history import JobChange, Line, StepProgress, WatchedStep, WatchHistory
from longshore_client.view import EventView, JobView, assigned, lacking, problems, steps_text

PHASE_STYLES: Final = {
    Phase.QUEUED: "blue",
    Phase.PENDING: "yellow",
    Phase.STARTING: "yellow",
    Phase.RUNNING: "cyan",
    Phase.RESTARTING: "magenta",
    Phase.SUSPENDED: "blue",
    Phase.SUCCEEDED: "green",
    Phase.FAILED: "red",
}
KIND_STYLES: Final = {RoundKind.SHORT: "green", RoundKind.LONG: "magenta", RoundKind.FULL: "cyan"}
_BAR_WIDTH: Final = 20
_TREND_WIDTH: Final = 40
_NUM_SHARES: Final = 4
_LEAST_SHARE: Final = 0.01


def dashboard(history: WatchHistory, events: tuple[EventView, ...], now_s: float) -> RenderableType:
    """Return everything about a job in one panel."""
    view = history.view
    body = Group(_figures(history, now_s), *_condition_lines(view), *_event_lines(events))
    style = PHASE_STYLES[view.phase]
    title = Text.assemble(
        f"RLJob {view.namespace}/{view.name}", "  ", (str(view.phase), f"bold {style}"), (f"  {view.strategy}", "dim"),
        f"  attempt {view.status.attempt}" if view.status.attempt > 1 else "",
    )  # fmt: skip
    return Panel(body, title=title, title_align="left", border_style=style, padding=(0, 1))


def line(item: Line) -> RenderableType | None:
    """Return a line for the scrollback; None for what the panel shows."""
    match item:
        case StepProgress():
            return None
        case JobChange(text):
            return Text(f"· {text}", style="dim")
        case WatchedStep():
            return _step_line(item)


def _figures(history: WatchHistory, now_s: float) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    view, runtime = history.view, history.view.runtime
    table.add_row("Step", _step_row(history, now_s))
    table.add_row("Round", _round_row(view, now_s - history.since_s))
    if lacking(view):
        table.add_row("Waits for", Text(lacking(view), style="yellow"))
    if history.rewards:
        trend = fmt.sparkline([value for _, value in history.rewards], _TREND_WIDTH)
        table.add_row("Reward", Text.assemble(f"{fmt.reward(runtime.reward)}  ", (trend, "cyan")))
    if runtime.held_out.before is not None or runtime.held_out.latest is not None:
        table.add_row("Held out", _held_out_row(view))
    if runtime.step:
        table.add_row("Responses", _responses_row(view))
        table.add_row("Rounds", _rounds_row(view))
        table.add_row("Draws", _draws_row(view))
    if runtime.auto is not None:
        table.add_row("Auto", Text(words.factors(runtime.auto)))
    if history.activity_s:
        table.add_row("Time", _time_row(history))
    table.add_row("GPUs", _gpus_row(view))
    if assigned(view):
        table.add_row("Assigned", Text(assigned(view), style="dim", no_wrap=True, overflow="ellipsis"))
    table.add_row("Pods", _pods_row(view))
    return table


def _step_row(history: WatchHistory, now_s: float) -> RenderableType:
    view = history.view
    remaining_s = history.remaining_s(now_s)
    pace = []
    if history.step_s is not None:
        pace.append(f"{fmt.duration(history.step_s)} a step")
    if remaining_s is not None and not view.is_finished:
        pace.append(f"{fmt.duration(remaining_s)} left")
    done = view.runtime.step
    return _bar_row(steps_text(done, view.steps), min(1.0, done / max(1, view.steps)), " · ".join(pace))


def _round_row(view: JobView, for_s: float) -> RenderableType:
    current = view.runtime.round
    activity = words.in_words(words.activity(view))
    if view.is_finished:
        return Text(activity, style="dim")
    progress = view.runtime.progress
    if progress is not None and words.activity(view) == view.runtime.activity:
        return _progress_row(activity, progress)
    if current is None or words.activity(view) not in words.IN_EVERY_ROUND:
        return Text(f"{activity} for {fmt.duration(for_s)}", style="dim")
    label = Text(f"{current.number} {current.kind}", style=KIND_STYLES[current.kind])
    return _bar_row(label, current.fraction_finished, f"finished · {activity}")


def _progress_row(activity: str, progress: Progress) -> RenderableType:
    text = " · ".join(filter(None, (words.amount(progress), activity, progress.detail)))
    if not progress.total:
        return Text(text, style="dim")
    return _bar_row("", min(1.0, progress.done / progress.total), text)


def _bar_row(label: str | Text, fraction: float, text: str) -> Table:
    row = Table.grid(padding=(0, 1))
    row.add_column(width=9)
    row.add_column(width=_BAR_WIDTH)
    row.add_column(width=5, justify="right")
    row.add_column(style="dim")
    row.add_row(label, _bar(fraction), f"{100 * fraction:.0f} %", Text(text))
    return row


def _bar(fraction: float) -> ProgressBar:
    return ProgressBar(total=1.0, completed=fraction, width=_BAR_WIDTH, complete_style="cyan", finished_style="green")


def _held_out_row(view: JobView) -> Text:
    reward = view.runtime.held_out
    is_new = reward.latest != reward.before
    row = Text(fmt.change(reward.before, reward.latest if is_new else None))
    if reward.long_before is not None:
        row.append("   longest quarter ", style="dim")
        row.append(fmt.change(reward.long_before, reward.long_latest if is_new else None))
    return row


def _responses_row(view: JobView) -> Text:
    lengths = view.runtime.response_tokens
    return Text.assemble(
        ("tokens mean ", "dim"), f"{lengths.mean:.0f}", (" · p75 ", "dim"), f"{lengths.p75:.0f}",
        (" · max ", "dim"), f"{lengths.max:,}", ("   trained ", "dim"), f"{view.runtime.tokens_per_s:,.0f} tokens/s",
    )  # fmt: skip


def _rounds_row(view: JobView) -> Text:
    runtime = view.runtime
    row = Text()
    for kind, style, counted in (("short", "green", runtime.short), ("long", "magenta", runtime.long),
                                 ("full", "cyan", runtime.full)):  # fmt: skip
        if counted.rounds:
            row.append(f"{counted.rounds} {kind}", style=style)
            row.append(f" ({_per_sample(counted)})   ", style="dim")
    return row


def _draws_row(view: JobView) -> Text:
    draws = view.runtime.draws
    row = Text.assemble(
        ("long-prompt queue ", "dim"), str(draws.deferred), (" · trained ", "dim"), f"{draws.trained:,}"
    )
    row.append(" · without spread ", style="dim")
    row.append(f"{draws.zero_variance:,}")
    if draws.rejected:
        row.append(" · replaced ", style="dim")
        row.append(f"{draws.rejected:,}", style="yellow")
    return row


def _per_sample(counted: KindCount) -> str:
    mean = fmt.duration(counted.rollout_s / counted.rounds)
    return f"{mean}, {1000 * counted.rollout_s / counted.samples:.0f} ms/sample" if counted.samples else mean


def _time_row(history: WatchHistory) -> Text:
    """Return what took most of the time so far: `rollout 71 % · training 20 % · start of the engines 5 %`."""
    in_all_s = sum(history.activity_s.values())
    longest = sorted(history.activity_s.items(), key=lambda item: -item[1])[:_NUM_SHARES]
    shares = [
        f"{words.in_words(name)} {100 * seconds / in_all_s:.0f} %"
        for name, seconds in longest
        if seconds >= _LEAST_SHARE * in_all_s > 0
    ]
    return Text(" · ".join(shares), style="dim", no_wrap=True, overflow="ellipsis")


def _gpus_row(view: JobView) -> Text:
    gpus = view.status.gpus
    row = Text.assemble(str(gpus.rollout), (" rollout / ", "dim"), str(gpus.trainer), (" trainer", "dim"))
    if gpus.judge:
        row.append(" / ", style="dim")
        row.append(str(gpus.judge))
        row.append(" judge", style="dim")
    if (size := _elastic_size(view)) is not None:
        row.append("   worker pods ", style="dim")
        row.append(size)
    if view.runtime.tp_size:
        row.append("   tensor-parallel size ", style="dim")
        row.append(str(view.runtime.tp_size))
    if view.runtime.step:
        row.append("   bubble ", style="dim")
        row.append(fmt.share(view.runtime.bubble_share))
    return row


def _elastic_size(view: JobView) -> str | None:
    """Return the worker pods that an elastic job runs with, and those that it may have if these are others."""
    admission, running = view.status.admission, view.runtime.size
    if admission is None or admission.workers is None:
        return None
    granted = admission.workers
    return str(granted) if running is None or running.workers == granted else f"{running.workers} → {granted}"


def _pods_row(view: JobView) -> Text:
    status = view.status
    row = Text()
    for component, counts in (
        ("coordinator", status.coordinator),
        ("workers", status.workers),
        ("trainers", status.trainers),
        ("rewards", status.rewards),
        ("judges", status.judges),
        ("environments", status.environments),
    ):
        if component in ("trainers", "judges", "environments") and not counts.desired:
            continue
        row.append(f"{component} ", style="dim")
        row.append(f"{counts.ready}/{counts.desired}   ", style=_pods_style(counts))
    return row


def _pods_style(counts: PodCounts) -> str:
    return "" if counts.ready == counts.desired else "yellow"


def _condition_lines(view: JobView) -> list[Text]:
    return [
        Text.assemble(
            (f"! {condition.type}{' is false' if condition.status is ConditionStatus.FALSE else ''}: ", "bold yellow"),
            f"{condition.reason}", f": {condition.message}" if condition.message else "",
        )
        for condition in problems(view)
    ]  # fmt: skip


def _event_lines(events: tuple[EventView, ...]) -> list[Text]:
    return [
        Text(f"{event.time[11:19]} {event.reason}: {event.message}",
             style="yellow" if event.type == "Warning" else "dim", no_wrap=True, overflow="ellipsis")
        for event in events
    ]  # fmt: skip


def _step_line(done: WatchedStep) -> RenderableType:
    lengths = done.response_tokens
    text = Text.assemble(
        f"step {steps_text(done.step, done.steps):>{2 * len(str(done.steps)) + 1}}  ",
        (f"{done.kind or '':5}", KIND_STYLES[done.kind] if done.kind else ""),
        f"  reward {fmt.reward(done.reward)}",
        (f"  tokens {lengths.mean:.0f}/{lengths.max}".ljust(16), "dim"),
        f"{done.tokens_per_s:6,.0f} tok/s {fmt.duration(done.step_s):>6}",
        (f"  queue {done.deferred:<3d} bubble {100 * done.bubble_share:.0f} %", "dim"),
        no_wrap=True,
        overflow="ellipsis",
    )
    # A bare Text would be joined with others by the console, which forgets that it must not wrap.
    return Group(text)
