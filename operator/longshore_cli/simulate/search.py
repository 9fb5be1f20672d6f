"""`longshore simulate --search`: the choices that suit a job best, as a model, a table and one sentence."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field, ValidationError
from rich import box
from rich.console import Console
from rich.table import Table

from longshore.api.base import ApiModel
from longshore.api.rollout import Handover, OnPolicy, RepurposeTrigger, Strategy
from longshore.api.spec import Placement, RLJobSpec
from longshore.sim.choices import TRAININGS, Choice, SearchBounds
from longshore.sim.job import SimJob, training_of
from longshore.sim.search import Prediction, Progress, SearchResult
from longshore.sim.search import search as run_search
from longshore_cli import format as fmt
from longshore_cli.simulate.errors import BadInput
from longshore_cli.simulate.inputs import Inputs
from longshore_cli.simulate.variants import changed


class SearchedChoice(ApiModel):
    """One way to run the job; means over the simulated steps."""

    strategy: Strategy
    settings: dict[str, str]
    """Fields of the strategy, by their names in a manifest."""
    handover: Handover
    tensor_parallel_size: int
    on_policy: OnPolicy
    """Relaxed: it trains on tokens of older weights."""
    is_given: bool
    """Whether the manifest says so."""
    step_s: float = Field(alias="stepSeconds")
    tokens_per_s: float = Field(alias="tokensPerSecond")
    """Trained response tokens."""
    gpu_hours: float
    """GPU hours of algorithm.steps."""
    length_bias: float
    """Mean length of trained responses over that of all responses of the same draws, less 1."""
    speedup: float
    """Step time of Synchronous over step time of this."""
    token_speedup: float
    """The same at equal trained tokens."""
    gain: float
    """Share of the time of the manifest's own choice that it saves: at equal steps or at equal tokens, the smaller."""


class SearchReport(ApiModel):
    """A whole search."""

    name: str
    """Name of the RLJob."""
    model: str
    gpu_type: str
    num_choices: int
    """That were tried."""
    num_rounds: int
    """Simulated."""
    margin: float
    """Gain from which on a change is advised."""
    choices: list[SearchedChoice]
    """The best first; the manifest's own and Synchronous among them."""
    notes: list[str]
    """What was assumed."""
    advice: str
    """What to change in the manifest."""


def searched(job: SimJob, spec: RLJobSpec, progress: Progress) -> SearchResult:
    """Search for the best choices; raises BadInput where the job as it is cannot be simulated."""
    try:
        return run_search(job, bounds_of(spec, job), progress=progress)
    except ValueError as error:
        raise BadInput(str(error)) from error


def bounds_of(spec: RLJobSpec, job: SimJob) -> SearchBounds:
    """Return what the spec may choose from; a race between responses only where it has one."""
    rollout, tp_sizes = spec.rollout, job.profile.tp_sizes
    strategies = SearchBounds().strategies
    if rollout.on_policy is OnPolicy.RELAXED:
        strategies |= {Strategy.PARTIAL_ROLLOUT}
    sizes = [size for size in job.possible_tp_sizes if _is_valid(spec, engine_size=size)]
    return SearchBounds(
        strategies=frozenset(strategies),
        max_response_factor=rollout.tail_batching.response_factor,
        handovers=tuple(_handovers(spec)),
        # A measured size and a modelled one cannot be compared.
        tp_sizes=tuple(size for size in sizes if not tp_sizes or size in tp_sizes) if spec.workers.gpus_per_pod else (),
        is_frontier_open=spec.placement is Placement.DISAGGREGATED,
    )


def _handovers(spec: RLJobSpec) -> list[Handover]:
    """Return the handovers that the simulator tells apart: on shared GPUs, a pipelined one trains after the round."""
    parted = spec.placement is Placement.DISAGGREGATED
    possible = [Handover.AFTER_ROUND]
    if parted or _frees_pods(spec):
        possible.append(Handover.PIPELINED if parted else Handover.STREAMED)
    return [handover for handover in possible if _is_valid(spec, handover=handover)]


def _frees_pods(spec: RLJobSpec) -> bool:
    """Return whether a streamed handover could save anything: some pods train while others still sample."""
    return spec.workers.replicas > 1 and spec.rollout.repurposing.trigger is not RepurposeTrigger.NEVER


def _is_valid(spec: RLJobSpec, *, handover: Handover | None = None, engine_size: int | None = None) -> bool:
    fields: dict[str, Any] = {} if handover is None else {"handover": handover}
    if engine_size is not None:
        fields |= {"engine": spec.rollout.engine.model_dump(by_alias=False) | {"tensor_parallel_size": engine_size}}
    try:
        changed(spec, rollout=fields)
    except ValidationError:
        return False
    return True


def search_report(inputs: Inputs, found: SearchResult, notes: Sequence[str]) -> SearchReport:
    """Return all figures of a search."""
    return SearchReport(
        name=inputs.name,
        model=inputs.model.name,
        gpu_type=inputs.gpu.name,
        num_choices=found.num_choices,
        num_rounds=found.num_rounds,
        margin=found.margin,
        choices=[_outcome(one, found, inputs.spec) for one in found.ranking],
        notes=list(notes),
        advice=_advice(found, inputs.spec),
    )


def _outcome(one: Prediction, found: SearchResult, spec: RLJobSpec) -> SearchedChoice:
    choice, baseline = one.choice, found.baseline
    keeps = choice.rollout(spec.rollout).keeps_tokens
    return SearchedChoice(
        strategy=choice.strategy,
        settings=choice.settings,
        handover=choice.handover,
        tensor_parallel_size=choice.tp_size,
        on_policy=OnPolicy.RELAXED if keeps else OnPolicy.STRICT,
        is_given=choice == found.present.choice,
        step_s=one.step_s,
        tokens_per_s=one.tokens_per_s,
        gpu_hours=one.gpu_hours * spec.algorithm.steps,
        length_bias=one.length_bias,
        speedup=baseline.step_s / one.step_s,
        token_speedup=one.tokens_per_s / baseline.tokens_per_s,
        gain=1 - one.cost(found.present),
    )


def _advice(found: SearchResult, spec: RLJobSpec) -> str:
    best, present = found.best, found.present
    if not found.is_change:
        kept = f"Keep the job as it is: nothing that was tried is quicker by {fmt.share(found.margin)} or more"
        return f"{kept}{', without a bias' if _passed_over(found) else ''}.{_passed_over(found)}"
    step = f"a step then takes {fmt.duration(best.step_s)} instead of {fmt.duration(present.step_s)}"
    gain = fmt.share(1 - best.cost(present))
    to_do = ", ".join(_changes(present.choice, best.choice, spec))
    return (
        f"Set in spec.rollout: {to_do}. By the simulation {step}, which saves {gain} of the time or more."
        f"{_passed_over(found)}"
    )


def _passed_over(found: SearchResult) -> str:
    """Return why the quickest choice is not the one that is advised."""
    first = found.ranking[0]
    if first.choice == found.advised.choice:
        return ""
    by = fmt.share(1 - first.cost(found.present) / found.advised.cost(found.present))
    why = "trains on tokens of older weights" if first.off_policy_share else "prefers short responses"
    return f" {first.choice} is {by} quicker, but {why}."


def _changes(present: Choice, best: Choice, spec: RLJobSpec) -> list[str]:
    """Return fields of `rollout` with their new values."""
    found = []
    if best.strategy is not present.strategy:
        found.append(f"strategy: {best.strategy}")
        if spec.rollout.leftovers is not None and best.rollout(spec.rollout).leftovers is None:
            found.append("no leftovers")
    sections = {Strategy.TAIL_BATCHING: "tailBatching", Strategy.REORDER_ROLLOUT: "reorderRollout",
                Strategy.PARTIAL_ROLLOUT: "partialRollout"}  # fmt: skip
    for name, value in best.settings.items():
        if present.settings.get(name) != value or best.strategy is not present.strategy:
            section = "admission" if name == "frontierWidth" else sections[best.strategy]
            found.append(f"{section}.{name}: {value}")
    if present.frontier_width is not None and best.frontier_width is None:
        found.append("no admission.frontierWidth")
    if not _has_handover(spec, best):
        found.append(f"handover: {best.handover}")
    if best.tp_size != present.tp_size:
        found.append(f"engine.tensorParallelSize: {best.tp_size}")
    if present.plans_parallelism and not best.plans_parallelism:
        found.append("engine.parallelism: Fixed")
    return found


def _has_handover(spec: RLJobSpec, best: Choice) -> bool:
    """Return whether the job trains as this choice does once all but `handover` is changed: a strategy has its own."""
    changed_spec = spec.model_copy(update={"rollout": best.rollout(spec.rollout)})
    return training_of(changed_spec) is TRAININGS[best.handover]


def search_table(report: SearchReport) -> Table:
    """Return a row for every choice."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    drawn.add_column("strategy", no_wrap=True)
    drawn.add_column("settings", min_width=18)
    drawn.add_column("handover", no_wrap=True)
    for name in ("TP", "step", "GPU h", "bias", "speedup", "gain"):
        drawn.add_column(name, justify="right", no_wrap=True)
    for one in report.choices:
        drawn.add_row(*_cells(one), style="bold" if one.is_given else "")
    return drawn


def _cells(one: SearchedChoice) -> tuple[str, ...]:
    # A race between responses is worth a word, none is not.
    settings = {name: value for name, value in one.settings.items() if (name, value) != ("responseFactor", "1")}
    relaxed = ", relaxed" if one.on_policy is OnPolicy.RELAXED else ""
    return (
        f"{one.strategy}{relaxed}{' *' if one.is_given else ''}",
        ", ".join(f"{name} {value}" for name, value in settings.items()),
        one.handover,
        str(one.tensor_parallel_size),
        fmt.duration(one.step_s),
        f"{one.gpu_hours:,.1f}" if one.gpu_hours >= 1 else f"{one.gpu_hours:.2g}",
        fmt.share(one.length_bias),
        f"{min(one.speedup, one.token_speedup):.2f}x",
        fmt.share(one.gain),
    )


def show_search(report: SearchReport, title: str, console: Console) -> None:
    """Print everything."""
    console.print(title, style="bold", markup=False, soft_wrap=True)
    console.print(search_table(report))
    tried = f"{fmt.count(report.num_choices, 'choice')} tried in {fmt.count(report.num_rounds, 'round')}"
    notes = (f"{tried}; GPU hours are those of all steps. * is the manifest's own choice.", *report.notes)
    for sentence in notes:
        console.print(sentence, style="dim", markup=False, soft_wrap=True)
    console.print(report.advice, style="bold green", markup=False, soft_wrap=True)
