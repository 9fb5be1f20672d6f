"""What a search can choose of a job: how it samples and hands over. Everything else of the job stays as it is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from longshore.api.rollout import Handover, Leftovers, Parallelism, Rollout, Strategy, TailBatchingSettings
from longshore.api.round_status import RoundKind
from longshore.policy import tail_batching
from longshore.policy.round_policy import BatchShape
from longshore.policy.strategies import round_kinds
from longshore.sim.job import SimJob, Training

_PROMPT_FACTORS: Final = (1.25, 1.125, 1.5, 1.0625, 2.0)
"""Those of tail batching, the most promising first."""
_RESPONSE_FACTORS: Final = (1.125, 1.25, 1.5)
_REORDERS: Final = ((2.0, 8), (1.5, 4))
"""Group factor and bound on postponements."""
_GROUP_FACTORS: Final = (2.0, 1.5)
"""Those of partial rollout."""
_FRONTIER_UPDATES: Final = (1, 2, 4)
"""Widths of a frontier, in groups of an update, for all engines together."""
_LEAST_ROUNDS: Final = 8
_MOST_ROUNDS: Final = 40
"""Longer periods of tail batching are cut off."""
TRAININGS: Final = {
    Handover.AFTER_ROUND: Training.AFTER_ROUND,
    Handover.STREAMED: Training.STREAMED,
    Handover.PIPELINED: Training.PIPELINED,
}
"""What the simulator makes of a handover that a search chooses."""
_HANDOVERS: Final = {training: handover for handover, training in TRAININGS.items()}
_WITHOUT_LEFTOVERS: Final = frozenset({Strategy.SYNCHRONOUS, Strategy.GROUP_PIPELINE, Strategy.PARTIAL_ROLLOUT})
_MAX_PROMPT_FACTOR: Final = 2.0


@dataclass(frozen=True)
class Choice:
    """One way to run a job; a field that its strategy does not have is None."""

    strategy: Strategy
    handover: Handover
    tp_size: int
    """Tensor-parallel size of the engines, or the one that the planner begins with."""
    plans_parallelism: bool = False
    prompt_factor: float | None = None
    """TailBatching, as the next one."""
    response_factor: float | None = None
    group_factor: float | None = None
    """ReorderRollout and PartialRollout."""
    max_postponements: int | None = None
    """ReorderRollout."""
    frontier_width: int | None = None
    """Groups in service per engine; None: what the strategy does by itself."""

    @classmethod
    def of(cls, job: SimJob) -> "Choice":
        """Return the choice that a job makes now, or begins with."""
        rollout = job.rollout
        handover, tp_size = _HANDOVERS[job.trainer.training], rollout.engine.tensor_parallel_size
        choice = cls(
            Strategy.TAIL_BATCHING if rollout.strategy is Strategy.AUTO else rollout.strategy,
            handover,
            tp_size,
            job.plans_parallelism,
            frontier_width=rollout.admission.frontier_width,
        )
        match rollout.strategy:
            case Strategy.TAIL_BATCHING | Strategy.AUTO:
                tail = rollout.tail_batching
                return replace(choice, prompt_factor=tail.prompt_factor, response_factor=tail.response_factor)
            case Strategy.REORDER_ROLLOUT:
                reorder = rollout.reorder_rollout
                return replace(choice, group_factor=reorder.group_factor, max_postponements=reorder.max_postponements)
            case Strategy.PARTIAL_ROLLOUT:
                return replace(choice, group_factor=rollout.partial_rollout.group_factor)
            case _:
                return choice

    def under(self, strategy: Strategy, **settings: Any) -> "Choice":
        """Return the same choice under another strategy, with these of its settings."""
        return Choice(
            strategy,
            self.handover,
            self.tp_size,
            self.plans_parallelism,
            frontier_width=self.frontier_width,
            **settings,
        )

    @property
    def keeps_tokens(self) -> bool:
        """Whether responses are continued under newer weights by this strategy."""
        return self.strategy is Strategy.PARTIAL_ROLLOUT

    def applied_to(self, job: SimJob) -> SimJob:
        """Return the job with this choice; raises ValueError if it cannot have it."""
        rollout = self.rollout(job.rollout)
        trainer = replace(job.trainer, training=TRAININGS[self.handover])
        return replace(job, rollout=rollout, trainer=trainer, plans_parallelism=self.plans_parallelism)

    def rollout(self, given: Rollout) -> Rollout:
        """Return the rollout of a spec with this choice, besides the handover where that is as before."""
        changes: dict[str, Any] = {
            "strategy": self.strategy,
            "leftovers": self._leftovers(given),
            "engine": given.engine.model_copy(
                update={
                    "tensor_parallel_size": self.tp_size,
                    "parallelism": Parallelism.ADAPTIVE if self.plans_parallelism else Parallelism.FIXED,
                }
            ),
            "admission": given.admission.model_copy(update={"frontier_width": self.frontier_width}),
        }
        match self.strategy:
            case Strategy.TAIL_BATCHING:
                factors = {"prompt_factor": self.prompt_factor, "response_factor": self.response_factor}
                changes["tail_batching"] = given.tail_batching.model_copy(update=factors)
            case Strategy.REORDER_ROLLOUT:
                bounds = {"group_factor": self.group_factor, "max_postponements": self.max_postponements}
                changes["reorder_rollout"] = given.reorder_rollout.model_copy(update=bounds)
            case Strategy.PARTIAL_ROLLOUT:
                factor = {"group_factor": self.group_factor}
                changes["partial_rollout"] = given.partial_rollout.model_copy(update=factor)
        return given.model_copy(update=changes)

    def num_rounds(self, shape: BatchShape) -> int:
        """Return rounds that show what the choice comes to: whole periods of what it puts off and takes up again."""
        if self.strategy is Strategy.TAIL_BATCHING:
            assert self.prompt_factor is not None, "tail batching has factors"
            period = sum(tail_batching.period(self.prompt_factor, shape.num_prompts))
        else:
            period = 2 * (self.max_postponements or 0) + 2
        return min(_MOST_ROUNDS, period * -(-_LEAST_ROUNDS // period))

    def __str__(self) -> str:
        return " ".join([str(self.strategy), *(f"{name} {value}" for name, value in self.settings.items())])

    @property
    def settings(self) -> dict[str, str]:
        """Fields of the strategy, by their names in a manifest."""
        found = {
            "promptFactor": self.prompt_factor,
            "responseFactor": self.response_factor,
            "groupFactor": self.group_factor,
            "maxPostponements": self.max_postponements,
            "frontierWidth": self.frontier_width,
        }
        return {name: f"{value:g}" for name, value in found.items() if value is not None}

    def _leftovers(self, given: Rollout) -> Leftovers | None:
        return None if self.strategy in _WITHOUT_LEFTOVERS else given.leftovers


@dataclass(frozen=True)
class SearchBounds:
    """What a search may choose from.

    The defaults allow only strictly on-policy strategies without a race between responses, and so nothing that changes
    what is learned.
    """

    strategies: frozenset[Strategy] = frozenset(
        {Strategy.SYNCHRONOUS, Strategy.TAIL_BATCHING, Strategy.REORDER_ROLLOUT, Strategy.GROUP_PIPELINE}
    )
    max_response_factor: float = 1.0
    """Above 1, responses of a prompt may race, which trains on the shorter ones."""
    handovers: tuple[Handover, ...] = ()
    """Besides the job's own."""
    tp_sizes: tuple[int, ...] = ()
    """Besides the job's own."""
    is_frontier_open: bool = False
    """Whether the width of the frontier may change."""

    def allow(self, choice: Choice) -> bool:
        """Return whether it may be proposed; what the job does now may stay in any case."""
        return (
            choice.strategy in {*self.strategies, Strategy.SYNCHRONOUS}
            and (choice.prompt_factor or 1.0) <= _MAX_PROMPT_FACTOR
            and (choice.response_factor or 1.0) <= self.max_response_factor
        )


def references(present: Choice, bounds: SearchBounds) -> tuple[Choice, ...]:
    """Return what every search compares with besides the present: the baseline, and tail batching's defaults."""
    found = (present.under(Strategy.SYNCHRONOUS), _tail_batching(present, TailBatchingSettings().prompt_factor))
    return tuple(filter(bounds.allow, found))


def strategies(present: Choice, bounds: SearchBounds) -> Iterator[Choice]:
    """Yield choices with other strategies and other factors."""
    allowed = bounds.strategies
    if Strategy.TAIL_BATCHING in allowed:
        for factor in _PROMPT_FACTORS:
            yield _tail_batching(present, factor)
    if Strategy.REORDER_ROLLOUT in allowed:
        for factor, bound in _REORDERS:
            yield present.under(Strategy.REORDER_ROLLOUT, group_factor=factor, max_postponements=bound)
    if Strategy.PARTIAL_ROLLOUT in allowed:
        for factor in _GROUP_FACTORS:
            yield present.under(Strategy.PARTIAL_ROLLOUT, group_factor=factor)
    if Strategy.GROUP_PIPELINE in allowed and present.handover is Handover.PIPELINED:
        yield present.under(Strategy.GROUP_PIPELINE)


def races(choice: Choice) -> Iterator[Choice]:
    """Yield the same choice with a race between responses."""
    if choice.strategy is Strategy.TAIL_BATCHING:
        for factor in _RESPONSE_FACTORS:
            yield replace(choice, response_factor=factor)


def engine_sizes(choice: Choice, bounds: SearchBounds) -> Iterator[Choice]:
    """Yield the same choice on engines of other sizes, which are then kept."""
    for size in bounds.tp_sizes:
        if size != choice.tp_size:
            yield replace(choice, tp_size=size, plans_parallelism=False)


def handovers(choice: Choice, job: SimJob, bounds: SearchBounds) -> Iterator[Choice]:
    """Yield the same choice with other handovers.

    Those that take updates from long rounds, or the trainer's own log-probabilities from the ratios of updates, are
    left out.
    """
    trainer, has_long_rounds = job.trainer, RoundKind.LONG in round_kinds(choice.strategy)
    for handover in bounds.handovers:
        training = TRAININGS[handover]
        takes_updates = has_long_rounds and trainer.divides_long_rounds and training not in trainer.divided_in
        if takes_updates or (job.loses_old_log_probs(training) and not job.loses_old_log_probs(trainer.training)):
            continue
        if handover is Handover.STREAMED and choice.strategy is Strategy.GROUP_PIPELINE:
            continue
        keeps_width = handover is Handover.PIPELINED or not bounds.is_frontier_open
        yield replace(choice, handover=handover, frontier_width=choice.frontier_width if keeps_width else None)


def frontiers(choice: Choice, job: SimJob, bounds: SearchBounds) -> Iterator[Choice]:
    """Yield the same choice with a frontier of some updates, or with none.

    It matters for updates while a round runs.
    """
    if not bounds.is_frontier_open or choice.handover is not Handover.PIPELINED:
        return
    num_engines = max(1, job.gpus.num_gpus // choice.tp_size)
    widths = {max(1, -(-times * job.groups_per_update // num_engines)) for times in _FRONTIER_UPDATES}
    for width in (None, *sorted(widths)):
        yield replace(choice, frontier_width=width)


def neighbours(choice: Choice, tried: Sequence[float]) -> Iterator[Choice]:
    """Yield the same choice with the factors half way to the next ones that were tried."""
    own = choice.prompt_factor
    if own is None:
        return
    below = max((factor for factor in tried if factor < own), default=None)
    above = min((factor for factor in tried if factor > own), default=None)
    for other in (below, above):
        if other is not None:
            yield replace(choice, prompt_factor=(own + other) / 2)


def _tail_batching(present: Choice, prompt_factor: float) -> Choice:
    return present.under(Strategy.TAIL_BATCHING, prompt_factor=prompt_factor, response_factor=1.0)
