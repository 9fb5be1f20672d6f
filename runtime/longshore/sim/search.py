"""Which choices suit a job: they are simulated with the policies that would decide in it, coarse to fine.

Bounded by a number of simulated rounds, not by time: the same question has the same answer on every machine. The first
figures only select. The few choices that are left, and what they are compared with, are then simulated on draws that
the selection has not seen, so that the predicted gain is not the luck of the best of many.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from longshore.api.rollout import Strategy
from longshore.sim import choices
from longshore.sim.choices import Choice, SearchBounds
from longshore.sim.job import SimJob
from longshore.sim.result import SimResult
from longshore.sim.simulate import simulate

DEFAULT_ROUNDS: Final = 800
"""Simulated rounds of a search."""
DEFAULT_MARGIN: Final = 0.03
"""Gain from which on a change is worth it."""
_NO_BIAS: Final = 0.005
"""Bias, as a share of the mean length of trained responses, below which it is rounding."""
_BEAM: Final = 3
"""Choices that are kept from stage to stage."""
_USUAL_ROUNDS: Final = 10
"""Usual rounds of a choice that reaches the last comparison."""
_NUM_FRESH: Final = 2
"""Orders of the draws that the last comparison is made on."""


@dataclass(frozen=True)
class Prediction:
    """What a choice comes to in simulation."""

    choice: Choice
    step_s: float
    tokens_per_s: float
    """Trained response tokens."""
    gpu_hours: float
    """GPU hours of a step."""
    length_bias: float
    """See `SimResult.length_bias`."""
    off_policy_share: float
    """See `SimResult.off_policy_share`."""
    num_rounds: int
    """Simulated."""

    @property
    def is_unbiased(self) -> bool:
        """Whether it trains on the tokens of the newest weights alone, and on responses of all lengths."""
        return self.off_policy_share == 0 and abs(self.length_bias) < _NO_BIAS

    def cost(self, other: "Prediction") -> float:
        """Return the time that this takes for what `other` does in 1.

        It is that at equal steps or at equal trained tokens, whichever is more: quick steps on short responses are no
        gain.
        """
        return max(self.step_s / other.step_s, other.tokens_per_s / self.tokens_per_s)


@dataclass(frozen=True)
class SearchResult:
    """What a search found."""

    ranking: tuple[Prediction, ...]
    """Finalists, the best first; what they are compared with among them."""
    present: Prediction
    """What the job does now."""
    baseline: Prediction
    """Synchronous."""
    margin: float
    num_rounds: int
    """Simulated."""
    num_choices: int
    """That were tried."""

    @property
    def best(self) -> Prediction:
        """Prediction that is advised if it beats the present by the margin, or else the present."""
        return self.advised if self.advised.cost(self.present) <= 1 - self.margin else self.present

    @property
    def advised(self) -> Prediction:
        """The first of the ranking, or the first unbiased one that costs at most the margin more."""
        first = self.ranking[0]
        most = first.cost(self.present) * (1 + self.margin)
        near = (one for one in self.ranking if one.is_unbiased and one.cost(self.present) <= most)
        return next(near, first)

    @property
    def is_change(self) -> bool:
        """Whether something is worth a change."""
        return self.best.choice != self.present.choice


Progress = Callable[[float], None]
"""Is called with the share of the rounds that are simulated."""


def _ignore(share: float) -> None:
    return None


def search(
    job: SimJob,
    bounds: SearchBounds,
    *,
    num_rounds: int = DEFAULT_ROUNDS,
    margin: float = DEFAULT_MARGIN,
    progress: Progress = _ignore,
) -> SearchResult:
    """Return the best choices for a job; raises ValueError if the job as it is cannot be simulated.

    `num_rounds`: at most so many are simulated, or those of the present and of what it is compared with.
    """
    present = Choice.of(job)
    compared = _unique((present, *choices.references(present, bounds)))
    fresh_rounds = _NUM_FRESH * sum(choice.num_rounds(job.shape) for choice in compared)
    num_rounds = max(num_rounds, present.num_rounds(job.shape) + fresh_rounds)
    reserve = fresh_rounds + _NUM_FRESH * _BEAM * _USUAL_ROUNDS
    bench = _Bench(
        job, max(num_rounds - reserve, present.num_rounds(job.shape)), lambda done: progress(done / num_rounds)
    )
    reference = bench.required(present)
    beam: tuple[Choice, ...] = (present,)
    for options in _stages(job, bounds, bench):
        found = _unique(chain(beam, filter(bounds.allow, chain.from_iterable(map(options, beam)))))
        beam = tuple(sorted(filter(bench.measured, found), key=lambda one: bench.required(one).cost(reference))[:_BEAM])
    selected = bench.num_rounds
    fresh = _Bench(
        job,
        num_rounds - selected,
        lambda done: progress((selected + done) / num_rounds),
        seeds=range(1, 1 + _NUM_FRESH),
    )
    return _final(_unique((*compared, *beam)), bench, fresh, margin)


def _stages(job: SimJob, bounds: SearchBounds, bench: "_Bench") -> Iterator[Callable[[Choice], Iterator[Choice]]]:
    """Yield search stages, which change one thing at a time; the last ones are finer."""
    yield lambda choice: choices.strategies(choice, bounds)
    yield lambda choice: choices.engine_sizes(choice, bounds)
    yield lambda choice: choices.handovers(choice, job, bounds)
    yield lambda choice: choices.frontiers(choice, job, bounds)
    yield lambda choice: choices.races(choice)
    yield lambda choice: choices.neighbours(choice, bench.prompt_factors)


def _final(finalists: tuple[Choice, ...], bench: "_Bench", fresh: "_Bench", margin: float) -> SearchResult:
    """Measure finalists again on the same fresh draws while rounds last; ValueError without present and baseline."""
    present, baseline = finalists[0], finalists[0].under(Strategy.SYNCHRONOUS)
    found = {choice: prediction for choice in finalists if (prediction := fresh.measured(choice)) is not None}
    found |= {choice: fresh.required(choice) for choice in (present, baseline)}
    return SearchResult(
        ranking=tuple(sorted(found.values(), key=lambda one: one.cost(found[present]))),
        present=found[present],
        baseline=found[baseline],
        margin=margin,
        num_rounds=bench.num_rounds + fresh.num_rounds,
        num_choices=bench.num_choices,
    )


class _Bench:
    """Simulates choices, each once, as long as rounds are left."""

    def __init__(
        self, job: SimJob, num_rounds: int, report: Callable[[int], None], seeds: Iterable[int] = (0,)
    ) -> None:
        """Call `report` with the number of rounds after every choice."""
        self._report = report
        self._jobs = tuple(replace(job, seed=job.seed + seed) for seed in seeds)
        self._limit = num_rounds
        self._found: dict[Choice, Prediction | None] = {}
        self.num_rounds = 0

    @property
    def num_choices(self) -> int:
        """Number of choices that were simulated."""
        return sum(found is not None for found in self._found.values())

    @property
    def prompt_factors(self) -> tuple[float, ...]:
        """Prompt factors of all choices so far."""
        return tuple({choice.prompt_factor for choice in self._found if choice.prompt_factor is not None})

    def measured(self, choice: Choice) -> Prediction | None:
        """Return the prediction of a choice, or None if the job cannot have it or no rounds are left."""
        num_rounds = choice.num_rounds(self._jobs[0].shape)
        if choice not in self._found:
            total = num_rounds * len(self._jobs)
            if self.num_rounds + total > self._limit:
                return None
            try:
                self._found[choice] = self._simulated(choice, num_rounds)
            except ValueError:
                self._found[choice] = None
            else:
                self.num_rounds += total
                self._report(self.num_rounds)
        return self._found[choice]

    def required(self, choice: Choice) -> Prediction:
        """Return the same of a choice that was, or has to be, simulated."""
        if (found := self.measured(choice)) is not None:
            return found
        return self._simulated(choice, choice.num_rounds(self._jobs[0].shape))

    def _simulated(self, choice: Choice, num_rounds: int) -> Prediction:
        results = [simulate(choice.applied_to(job), num_rounds, keeps_spans=False) for job in self._jobs]
        return prediction(choice, results)


def prediction(choice: Choice, results: list[SimResult]) -> Prediction:
    """Return the prediction over all of these runs."""
    num_rounds, total_s = sum(len(one.steps) for one in results), sum(one.total_s for one in results)
    num_tokens = sum(one.tokens_per_s * one.total_s for one in results)
    return Prediction(
        choice,
        step_s=total_s / num_rounds,
        tokens_per_s=num_tokens / total_s,
        gpu_hours=sum(one.gpu_hours for one in results) / num_rounds,
        length_bias=sum(one.length_bias * one.total_s for one in results) / total_s,
        off_policy_share=sum(one.off_policy_share * one.total_s for one in results) / total_s,
        num_rounds=num_rounds,
    )


def _unique(found: Iterable[Choice]) -> tuple[Choice, ...]:
    return tuple(dict.fromkeys(found))
