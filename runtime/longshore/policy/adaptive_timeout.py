"""Time limits of test cases, learned from correct responses (RollPacker, section 4.3).

T = min(max(T_min, lambda * T_anchor), T_max), where T_anchor is the longest that a correct response took for this test
case. T and T_anchor are seconds of an idle machine. On a busy one a program waits for a CPU, which says nothing
about the program; so measured times are divided by the contention, and wall limits multiplied by it.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any, Final

from pydantic import Field

MIN_CPU_S: Final = 0.05
"""Runs with less CPU time tell nothing about contention: start-up and waiting outweigh the work."""
NUM_RESPONSES: Final = 256
"""Newest responses that contention is judged by: several prompts also where each has 64 of them."""
MIN_RESPONSES: Final = 32
MIN_PROMPTS: Final = 3
"""Fewest prompts by which limits are stretched.

With fewer, the first that sleep would decide, or the one prompt whose programs all do.
"""
MAX_CONTENTION: Final = 4.0
"""Limits are stretched no further; beyond it the reward pods are too few, and longer limits would only add load."""
Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
"""A duration that a reward pod reports; the bounds apply where its message is read."""


@dataclass(frozen=True)
class TimeoutSettings:
    """Constants of the rule; the defaults are the paper's."""

    factor: float = 1.5
    """lambda: how much slower than the slowest correct response one may be."""
    min_s: float = 2.0
    max_s: float = 30.0

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise ValueError(f"factor: {self.factor} would cut off correct responses; set it to 1 or more")
        if not 0 < self.min_s <= self.max_s:
            raise ValueError(f"min_s: {self.min_s} must be positive and not exceed max_s ({self.max_s})")


@dataclass(frozen=True)
class TimeLimit:
    """Limit of what a run of a test case may take."""

    idle_s: float
    """T: seconds on an idle machine. A single-threaded program may use as much CPU time."""
    wall_s: float
    """T stretched by the contention of the moment: when to cut the run off."""


@dataclass(frozen=True)
class CaseRun:
    """Event: a program ran through a test case, or was cut off in it."""

    case: Annotated[int, Field(ge=0)]
    wall_s: Seconds
    cpu_s: Seconds
    timed_out: bool = False


class AdaptiveTimeout:
    """Time limits from anchors by (prompt, test case) and from the recent contention.

    A prompt without a response that passed all of its tests has the limit T_max: a hard problem is never judged by how
    quickly wrong programs fail.
    """

    def __init__(self, settings: TimeoutSettings = TimeoutSettings(), capacity: int = 32_768) -> None:
        """Remember at most `capacity` prompts; forget the one that was longest without a correct response."""
        assert capacity >= 1
        self._settings = settings
        self._capacity = capacity
        self._anchors: OrderedDict[int, dict[int, float]] = OrderedDict()
        self._delays: deque[tuple[int, float]] = deque(maxlen=NUM_RESPONSES)
        """Prompt, and wall time per CPU time of the least delayed run, by response."""
        self._contention = 1.0

    def limit(self, prompt: int, case: int) -> TimeLimit:
        """Return what the next run of a test case may take."""
        limits, anchor_s = self._settings, self._anchors.get(prompt, {}).get(case)
        idle_s = limits.max_s if anchor_s is None else min(max(limits.min_s, limits.factor * anchor_s), limits.max_s)
        return TimeLimit(idle_s, idle_s * self.contention)

    def response_tested(self, prompt: int, runs: Sequence[CaseRun], *, passed_all: bool) -> None:
        """Learn from the runs of one response; only one that passed all tests moves anchors."""
        assert not (passed_all and any(run.timed_out for run in runs)), "a run that was cut off did not pass"
        ratios = [run.wall_s / run.cpu_s for run in runs if run.cpu_s >= MIN_CPU_S]
        if ratios:
            # A busy machine delays every run, so the least delayed tells most.
            self._delays.append((prompt, min(ratios)))
            self._contention = _contention(self._delays)
        if not passed_all:
            return
        anchors = self._anchors.setdefault(prompt, {})
        self._anchors.move_to_end(prompt)
        for run in runs:
            anchors[run.case] = max(anchors.get(run.case, 0.0), _idle_seconds(run, self.contention))
        if len(self._anchors) > self._capacity:
            self._anchors.popitem(last=False)

    def anchor_s(self, prompt: int, case: int) -> float | None:
        """Return seconds on an idle machine that the slowest correct response took; None while none is known."""
        return self._anchors.get(prompt, {}).get(case)

    @property
    def contention(self) -> float:
        """Wall time per CPU time of late, at least 1 and at most MAX_CONTENTION."""
        return self._contention

    def export_state(self) -> dict[str, Any]:
        """Return the state as JSON values, with the prompt to be forgotten first at the front."""
        anchors = [[prompt, [[case, s] for case, s in cases.items()]] for prompt, cases in self._anchors.items()]
        return {"anchors": anchors, "delays": [list(delay) for delay in self._delays]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Undo `export_state`; a capacity that has become smaller keeps the newest."""
        newest = state["anchors"][-self._capacity :]
        self._anchors = OrderedDict((prompt, dict(cases)) for prompt, cases in newest)
        delays = ((prompt, ratio) for prompt, ratio in state["delays"])
        self._delays = deque(delays, maxlen=NUM_RESPONSES)
        self._contention = _contention(self._delays)


def _contention(delays: Collection[tuple[int, float]]) -> float:
    """Return the median of the prompts' votes. A prompt's vote is its least delayed response.

    So neither a program that sleeps nor a prompt whose programs all do looks like a busy machine.
    """
    votes: dict[int, float] = {}
    for prompt, ratio in delays:
        if ratio < votes.get(prompt, math.inf):
            votes[prompt] = ratio
    if len(delays) < MIN_RESPONSES or len(votes) < MIN_PROMPTS:
        return 1.0
    return min(max(1.0, median(votes.values())), MAX_CONTENTION)


def _idle_seconds(run: CaseRun, contention: float) -> float:
    """Return the seconds that a run would have taken on an idle machine.

    They are no less than its CPU time, unless it had several threads, and no more than it took.
    """
    return min(run.wall_s, max(run.cpu_s, run.wall_s / contention))
