"""Time limits of test cases, learnt from correct responses (RollPacker, section 4.3).

T = min(max(T_min, lambda * T_anchor), T_max), where T_anchor is the longest that a correct response took for this test
case. T and T_anchor are seconds of an idle machine. On a busy one a program waits for a CPU, which says nothing
about the program; so measured times are divided by the contention, and wall limits multiplied by it.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

MIN_CPU_S: Final = 0.05
"""Runs with less CPU time tell nothing about contention: start-up and waiting outweigh the work."""
NUM_RATIOS: Final = 65
"""Newest responses that contention is judged by: enough that programs which sleep, and look delayed, are outvoted."""
MIN_RATIOS: Final = 5
"""With fewer, limits are not stretched: the first that sleeps would decide alone."""
MAX_CONTENTION: Final = 4.0
"""Limits are stretched no further; beyond it the reward pods are too few, and longer limits would only add load."""


@dataclass(frozen=True)
class TimeoutKnobs:
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
    """What a run of a test case may take."""

    idle_s: float
    """T: seconds on an idle machine. A single-threaded program may use as much CPU time."""
    wall_s: float
    """T stretched by the contention of the moment: when to cut the run off."""


@dataclass(frozen=True)
class CaseRun:
    """Event: a program ran through a test case, or was cut off in it."""

    case: int
    wall_s: float
    cpu_s: float
    timed_out: bool = False


class AdaptiveTimeout:
    """Anchors by (prompt, test case) and the contention of late. A prompt without a response that passed all of its
    tests has the limit T_max: a hard problem is never judged by how quickly wrong programs fail.
    """

    def __init__(self, knobs: TimeoutKnobs = TimeoutKnobs(), capacity: int = 32_768) -> None:
        """`capacity`: prompts that are remembered; the one that was longest without a correct response is forgotten."""
        assert capacity >= 1
        self._knobs = knobs
        self._capacity = capacity
        self._anchors: OrderedDict[int, dict[int, float]] = OrderedDict()
        self._ratios: deque[float] = deque(maxlen=NUM_RATIOS)

    def limit(self, prompt: int, case: int) -> TimeLimit:
        """What the next run of a test case may take."""
        knobs, anchor_s = self._knobs, self._anchors.get(prompt, {}).get(case)
        idle_s = knobs.max_s if anchor_s is None else min(max(knobs.min_s, knobs.factor * anchor_s), knobs.max_s)
        return TimeLimit(idle_s, idle_s * self.contention)

    def response_tested(self, prompt: int, runs: Sequence[CaseRun], *, passed_all: bool) -> None:
        """The runs of one response; only one that passed all tests moves anchors."""
        assert not (passed_all and any(run.timed_out for run in runs)), "a run that was cut off did not pass"
        ratios = [run.wall_s / run.cpu_s for run in runs if run.cpu_s >= MIN_CPU_S]
        if ratios:
            # One vote per response, or a program that sleeps through a hundred test cases would have a hundred. A busy
            # machine delays every run, so the least delayed tells most.
            self._ratios.append(min(ratios))
        if not passed_all:
            return
        anchors = self._anchors.setdefault(prompt, {})
        self._anchors.move_to_end(prompt)
        for run in runs:
            anchors[run.case] = max(anchors.get(run.case, 0.0), _idle_seconds(run, self.contention))
        if len(self._anchors) > self._capacity:
            self._anchors.popitem(last=False)

    def anchor_s(self, prompt: int, case: int) -> float | None:
        """Seconds on an idle machine that the slowest correct response took; None while none is known."""
        return self._anchors.get(prompt, {}).get(case)

    @property
    def contention(self) -> float:
        """Median wall time per CPU time of the newest responses, at least 1 and at most MAX_CONTENTION."""
        return min(max(1.0, median(self._ratios)), MAX_CONTENTION) if len(self._ratios) >= MIN_RATIOS else 1.0

    def export_state(self) -> dict[str, Any]:
        """As JSON values, the prompt to be forgotten first at the front."""
        anchors = [[prompt, [[case, s] for case, s in cases.items()]] for prompt, cases in self._anchors.items()]
        return {"anchors": anchors, "ratios": list(self._ratios)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Undo `export_state`; a capacity that has become smaller keeps the newest."""
        newest = state["anchors"][-self._capacity :]
        self._anchors = OrderedDict((prompt, dict(cases)) for prompt, cases in newest)
        self._ratios = deque(state["ratios"], maxlen=NUM_RATIOS)


def _idle_seconds(run: CaseRun, contention: float) -> float:
    """What a run would have taken on an idle machine: no less than its CPU time, unless it had several threads, and no
    more than it took.
    """
    return min(run.wall_s, max(run.cpu_s, run.wall_s / contention))
