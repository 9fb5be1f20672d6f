"""Decide what is measured, in which order and for how long. The order makes an early end useful."""

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from longshore.api.runtime_status import RuntimeActivity
from longshore.sim.profile import Profile, Subject
from longshore_runtime.backends.engine_spec import EngineStartError
from longshore_runtime.clock import Clock
from longshore_runtime.profiling.engine_probe import EngineProbe
from longshore_runtime.profiling.figures import Figures
from longshore_runtime.profiling.staircase import EngineLimits
from longshore_runtime.profiling.synthetic import Synthetic
from longshore_runtime.profiling.trainer_probe import TrainerLimits, TrainerProbe
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.events import Event
from longshore_runtime.trainer.group import TrainerGroup

log = structlog.get_logger()

BUDGET_S: Final = 120.0
"""Seconds of measuring. Starting engines of another size comes on top."""
_REPEATS: Final = 3


@dataclass(frozen=True)
class Scope:
    """The properties of a job that its profile depends on."""

    max_num_seqs: int
    max_context_tokens: int
    vocab_size: int
    trainer: TrainerLimits
    other_tp_sizes: Sequence[int] = ()
    """Other sizes that the engines can have."""
    seed: int = 0


@dataclass(frozen=True)
class Machine:
    """The idle engines and trainers of a job."""

    engines: EnginePool
    trainers: TrainerGroup
    events: "queue.SimpleQueue[Event]"
    clock: Clock


class Profiler:
    """Measure repeatedly; the profile has the medians."""

    def __init__(
        self,
        machine: Machine,
        scope: Scope,
        on_stage: Callable[[RuntimeActivity], None] = lambda stage: None,
        on_measured: Callable[[int, int, str], None] = lambda done, most, what: None,
    ) -> None:
        """Prepare a profile.

        Args:
            on_stage: called with what is measured now.
            on_measured: called with the measurements of this stage that are done, how many there are at most, and what
                they are of.
        """
        self._machine = machine
        self._scope = scope
        self._on_stage = on_stage
        self._on_measured = on_measured
        self.figures = Figures()
        synthetic = Synthetic(scope.vocab_size, scope.seed)
        self._engines = EngineProbe(machine.engines, machine.events, synthetic, machine.clock)
        self._trainers = TrainerProbe(machine.trainers, machine.engines, scope.trainer, synthetic, machine.clock)
        self._is_warm = False

    def profile(self, subject: Subject | None = None) -> Profile:
        """Return the profile of everything measured so far."""
        return self.figures.profile(subject)

    def run(self, budget_s: float = BUDGET_S) -> None:
        """Measure engines, trainers and other sizes: each at least once, and again while its share of time lasts."""
        own_size = self._machine.engines.tp_size
        self._on_stage(RuntimeActivity.PROFILE_ENGINES)
        self._begin(budget_s / 3)
        self._measure_size(own_size, budget_s / 3)
        self._on_stage(RuntimeActivity.PROFILE_TRAINERS)
        self._repeat("trainers", [lambda: self._trainers.measure(self.figures)], budget_s / 3)
        for tp_size in self._scope.other_tp_sizes:
            self._on_stage(RuntimeActivity.PROFILE_SIZES)
            self._measure_other_size(tp_size, own_size, budget_s / 3 / len(self._scope.other_tp_sizes))

    def measure(self) -> None:
        """Measure engines at their configured size, and trainers, once."""
        self._begin(BUDGET_S)
        self._trainers.measure(self.figures)
        tp_size = self._machine.engines.tp_size
        self._engines.kv_capacity(tp_size, self.figures)
        for measure in self._of_engines(tp_size):
            measure()

    def _begin(self, trainers_s: float) -> None:
        if not self._is_warm:
            self._trainers.publish(Figures())  # The engines take requests from here on.
            self._engines.warm_up()
            self._trainers.warm_up(trainers_s)
            self._is_warm = True

    def _of_engines(self, tp_size: int) -> list[Callable[[], None]]:
        """Measure engines at their present size."""
        return [
            lambda: self._engines.decode(tp_size, self._limits(), self.figures),
            lambda: self._engines.prefill(tp_size, self._limits(), self.figures),
            lambda: self._engines.migration(self._limits(), self.figures),
        ]

    def _measure_size(self, tp_size: int, time_s: float) -> None:
        self._engines.kv_capacity(tp_size, self.figures)
        self._repeat(f"engines of size {tp_size}", self._of_engines(tp_size), time_s)

    def _measure_other_size(self, tp_size: int, own_size: int, time_s: float) -> None:
        """Measure engines of another size. Only the way back counts as a switch: later switches wake engines, too."""
        engines, clock = self._machine.engines, self._machine.clock
        try:
            engines.regroup(tp_size)
        except EngineStartError as error:
            log.warning("size left out", tp_size=tp_size, reason=str(error))
            return
        self._engines.warm_up()
        self._measure_size(tp_size, time_s)
        started_s = clock.now_s()
        engines.regroup(own_size)
        self.figures.scalar("regroup_s", clock.now_s() - started_s)

    def _limits(self) -> EngineLimits:
        """Return the limits of the smallest engine that serves."""
        stats = self._machine.engines.stats().values()
        capacity = min((one.kv_capacity_tokens for one in stats), default=1)
        return EngineLimits(self._scope.max_num_seqs, self._scope.max_context_tokens, capacity)

    def _repeat(self, what: str, measures: Sequence[Callable[[], None]], time_s: float) -> None:
        """Repeat while the next run fits into the time, judging by how long the last one took."""
        clock = self._machine.clock
        end_s = clock.now_s() + time_s
        done, most = 0, _REPEATS * len(measures)
        for number in range(1, _REPEATS + 1):
            started_s = clock.now_s()
            for measure in measures:
                self._on_measured(done, most, what)
                measure()
                done += 1
            ended_s = clock.now_s()
            log.info("measured", what=what, times=number, seconds=round(ended_s - started_s, 1))
            if 2 * ended_s - started_s > end_s:
                return
