"""What watching a job has taught so far: a pure fold over its status, with the steps that ended on the way."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from longshore.api.round_status import RoundKind
from longshore.api.runtime_status import (
    ENDING_ACTIVITIES,
    HeldOutReward,
    Progress,
    ResponseTokens,
    RuntimeActivity,
    RuntimeStatus,
)
from longshore_cli import format as fmt
from longshore_cli.watch import words
from longshore_client.view import JobView, lacking, steps_text

PACE_STEPS: Final = 8
"""Number of last steps that determine the pace."""
_PROGRESS_S: Final = 10.0
"""Seconds of a step without a line before its progress is reported."""
_MAX_PROGRESS_S: Final = 60.0
"""The same in a step that takes many minutes."""
_QUIET: Final = words.IN_EVERY_ROUND | ENDING_ACTIVITIES | {RuntimeActivity.CHECKPOINT}
"""Activities that get no line."""


@dataclass(frozen=True)
class WatchedStep:
    """A step that ended while we watched; of several that were reported together, the last one."""

    step: int
    steps: int
    kind: RoundKind | None
    reward: float | None
    response_tokens: ResponseTokens
    tokens_per_s: float
    rollout_s: float | None
    """Seconds of the rollout; None where several steps ended: their rollouts were reported together."""
    bubble_share: float
    deferred: int
    step_s: float


@dataclass(frozen=True)
class JobChange:
    """The job changed its phase, attempt or activity."""

    text: str


@dataclass(frozen=True)
class StepProgress:
    """Progress of a step that has had no line for a while."""

    text: str


Line = WatchedStep | JobChange | StepProgress


@dataclass(frozen=True)
class WatchHistory:
    """Memory of a watch; every time is that of the watching clock."""

    view: JobView
    seen_s: float
    kinds: Mapping[int, RoundKind] = field(default_factory=dict)
    """Round kinds by round number, of the newest rounds."""
    rewards: tuple[tuple[int, float], ...] = ()
    marks: tuple[tuple[int, float], ...] = ()
    """(steps done, when this was first seen while rounds were running)."""
    since_s: float = 0.0
    """When the present activity was first seen."""
    line_s: float = 0.0
    """Time of the last line, or of the begin of the watch."""
    seen_activity_s: Mapping[str, float] = field(default_factory=dict)
    """How long each activity was seen."""
    reported_activity_s: Mapping[int, Mapping[RuntimeActivity, float]] = field(default_factory=dict)
    """By attempt: how long each activity took, as its coordinator reported."""

    @property
    def step_s(self) -> float | None:
        """Seconds of a step at the present pace; None before two steps were seen."""
        recent = self.marks[-PACE_STEPS - 1 :]
        if len(recent) < 2:
            return None
        return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])

    @property
    def activity_s(self) -> Mapping[str, float]:
        """Seconds that each activity took, as coordinators report it, or otherwise as it was seen."""
        reported: defaultdict[str, float] = defaultdict(float)
        for of_attempt in self.reported_activity_s.values():
            for activity, seconds in of_attempt.items():
                reported[activity] += seconds
        return {**self.seen_activity_s, **reported}

    def remaining_s(self, now_s: float) -> float | None:
        """Return seconds until the last step ends, if the pace stays."""
        step_s = self.step_s
        if step_s is None:
            return None
        since_last_s = now_s - self.marks[-1][1]
        return max(0.0, step_s * (self.view.steps - self.view.runtime.step) - min(since_last_s, step_s))


def begin(view: JobView, now_s: float) -> WatchHistory:
    """Return the first look at a job."""
    return _remember(WatchHistory(view, now_s, since_s=now_s, line_s=now_s), view, now_s)


def advance(history: WatchHistory, view: JobView, now_s: float) -> tuple[WatchHistory, tuple[Line, ...]]:
    """Take in a newer status; return lines about what has happened since the last one."""
    view = _with_figures_of(history.view, view)
    before, after = history.view.runtime, view.runtime
    doing = words.activity(history.view)
    seen = {**history.seen_activity_s, doing: history.seen_activity_s.get(doing, 0.0) + now_s - history.seen_s}
    lines = _notices(history.view, view)
    if after.step < before.step or (after.step > before.step and doing in words.PREPARATIONS):
        lines += (JobChange(f"continues from step {after.step}"),)
        history = _forget_after(history, after.step)
    elif after.step > before.step:
        # What follows the step was reported with it.
        lines = (*_missed_steps(history, view), _step_done(history, view), *lines)
    lines = (*lines, *_held_out(before.held_out, after.held_out)) or _progress(history, view, now_s)
    since_s = history.since_s if words.activity(view) == doing else now_s
    line_s = now_s if lines else history.line_s
    return _remember(replace(history, seen_activity_s=seen, since_s=since_s, line_s=line_s), view, now_s), lines


def _missed_steps(history: WatchHistory, view: JobView) -> tuple[Line, ...]:
    """Return a line for each step but the last of those that were reported together, with the figures of the last."""
    kinds, last = _kinds(history, view), view.runtime.step
    why = f"reported with step {last}; own figures in metrics.jsonl"
    lines = (
        (f"step {steps_text(step, view.steps)}", kinds.get(step), why)
        for step in range(history.view.runtime.step + 1, last)
    )
    return tuple(JobChange("  ".join(filter(None, parts))) for parts in lines)


def _held_out(before: HeldOutReward, after: HeldOutReward) -> tuple[Line, ...]:
    """Return a line for a new result on held-out prompts."""
    if after == before or after.before is None:
        return ()
    is_first = after.latest in (None, after.before)
    result = f"{fmt.reward(after.before)} before the first step" if is_first else fmt.change(after.before, after.latest)
    return (JobChange(f"held-out reward {result}"),)


def _progress(history: WatchHistory, view: JobView, now_s: float) -> tuple[Line, ...]:
    """Return a line for a step that has had none for ten seconds, or for longer in a step of many minutes."""
    doing, runtime = words.activity(view), view.runtime
    began_s = history.marks[-1][1] if history.marks else history.since_s
    quiet_s = min(max(_PROGRESS_S, (now_s - began_s) / 2), _MAX_PROGRESS_S)
    if doing not in words.IN_EVERY_ROUND or now_s - history.line_s < quiet_s:
        return ()
    finished = (
        f"{runtime.round.kind} round, {fmt.share(runtime.round.fraction_finished)} finished" if runtime.round else ""
    )
    amount = words.amount(runtime.progress) if runtime.progress is not None else ""
    parts = [words.in_words(doing), finished if doing == RuntimeActivity.ROLLOUT else amount]
    return (StepProgress(f"step {steps_text(runtime.step + 1, view.steps)}  {': '.join(filter(None, parts))}"),)


def _with_figures_of(before: JobView, after: JobView) -> JobView:
    """Return `after` with the figures of `before` while a new attempt prepares itself."""
    if words.activity(after) not in words.PREPARATIONS or after.runtime.step >= before.runtime.step:
        return after
    kept = before.runtime.model_copy(
        update={
            "attempt": after.runtime.attempt,
            "activity": after.runtime.activity,
            "activity_s": after.runtime.activity_s,
            "progress": after.runtime.progress,
            "round": None,
        }
    )
    return replace(after, status=after.status.model_copy(update={"runtime": kept}))


def opening(view: JobView) -> tuple[Line, ...]:
    """Return the lines with which a watch begins: what the job waits for."""
    return (JobChange(f"waits for {lacking(view)}"),) if lacking(view) else ()


def _notices(before: JobView, after: JobView) -> tuple[Line, ...]:
    return _changes(before, after) + (opening(after) if lacking(after) != lacking(before) else ())


def _changes(before: JobView, after: JobView) -> tuple[Line, ...]:
    if after.phase is not before.phase:
        return (JobChange(f"{after.phase}"),)
    if after.status.attempt != before.status.attempt and after.status.attempt > 1:
        return (JobChange(f"attempt {after.status.attempt}"),)
    doing = words.activity(after)
    if doing != words.activity(before):
        return (JobChange(words.in_words(doing)),) if doing not in _QUIET else ()
    progress = after.runtime.progress
    if doing in words.IN_EVERY_ROUND:
        return ()
    if progress is not None and _quarters(progress) > _quarters(before.runtime.progress):
        what = f"{words.in_words(doing)}, {progress.detail}" if progress.detail else words.in_words(doing)
        waits = f"; waits for {lacking(after)}" if lacking(after) else ""
        return (JobChange(f"{what}: {words.amount(progress)}{waits}"),)
    return ()


def _quarters(progress: Progress | None) -> int:
    """Return the number of completed quarters: each is worth a line."""
    return 4 * progress.done // progress.total if progress is not None and progress.total else 0


def _step_done(history: WatchHistory, view: JobView) -> WatchedStep:
    before, after = history.view.runtime, view.runtime
    num_steps = after.step - before.step
    return WatchedStep(
        step=after.step,
        steps=view.steps,
        kind=_kinds(history, view).get(after.step),
        reward=after.reward,
        response_tokens=after.response_tokens,
        tokens_per_s=after.tokens_per_s,
        rollout_s=_rollout_s(after) - _rollout_s(before) if num_steps == 1 else None,
        bubble_share=after.bubble_share,
        deferred=after.draws.deferred,
        step_s=after.step_s,
    )


def _remember(history: WatchHistory, view: JobView, now_s: float) -> WatchHistory:
    runtime = view.runtime
    rewards, marks = history.rewards, history.marks
    if runtime.reward is not None and (not rewards or rewards[-1][0] < runtime.step):
        rewards += ((runtime.step, runtime.reward),)
    runs_rounds = words.activity(view) in words.IN_EVERY_ROUND
    if runs_rounds and (not marks or marks[-1][0] < runtime.step):
        marks += ((runtime.step, now_s),)
    reported = {**history.reported_activity_s, runtime.attempt: runtime.activity_s}
    return replace(
        history,
        view=view,
        seen_s=now_s,
        kinds=_kinds(history, view),
        rewards=rewards,
        marks=marks,
        reported_activity_s=reported,
    )


def _kinds(history: WatchHistory, view: JobView) -> Mapping[int, RoundKind]:
    current, finished = view.runtime.round, {one.number: one.kind for one in view.runtime.recent_rounds}
    return {**history.kinds, **finished} | ({} if current is None else {current.number: current.kind})


def _forget_after(history: WatchHistory, step: int) -> WatchHistory:
    """Forget what came after the checkpoint that a restart went back to: it will come again."""
    return replace(history, rewards=tuple(item for item in history.rewards if item[0] <= step), marks=())


def _rollout_s(runtime: RuntimeStatus) -> float:
    return runtime.short.rollout_s + runtime.long.rollout_s + runtime.full.rollout_s
