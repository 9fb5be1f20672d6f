"""What the command does: reads, simulates, shows."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer
from rich.console import Console

from longshore.api.rollout import Strategy
from longshore.sim.job import SimJob, period
from longshore.sim.paper.published import Paper
from longshore.sim.search import SearchResult
from longshore.sim.simulate import simulate as run_job
from longshore.sim.timeline import timeline as timeline_of
from longshore_cli import consoles
from longshore_cli.simulate import inputs as reading
from longshore_cli.simulate import papers, picture, table
from longshore_cli.simulate import search as searching
from longshore_cli.simulate.errors import BadInput
from longshore_cli.simulate.inputs import Inputs, SimulateOptions
from longshore_cli.simulate.job import default_num_steps, sim_job
from longshore_cli.simulate.notes import notes
from longshore_cli.simulate.report import report
from longshore_cli.simulate.variants import COMPARED, SimulatedVariant, StrategyVariant, total_gpus, variants, with_gpus

_PIPE_WIDTH: Final = 100
"""A pipe has no width."""
_MOST_DRAWN_STEPS: Final = 8


@dataclass(frozen=True)
class SimulationChoice:
    """What is simulated of a job, as the options say it; unset: all that the job can have."""

    strategies: str | None
    gpus: str | None
    steps: int | None
    strict_only: bool


def simulate(options: SimulateOptions, choice: SimulationChoice, timeline: Path | None, *, as_json: bool) -> None:
    """Simulate a job and show what came of it."""
    if timeline is not None:
        picture.check(timeline)
    inputs = reading.read(options)
    chosen, skipped = variants(inputs.spec, _strategies(choice.strategies), strict_only=choice.strict_only)
    num_steps = choice.steps or default_num_steps(inputs.spec)
    runs = _simulated(inputs, chosen, _gpu_counts(choice.gpus, inputs), num_steps, keeps_spans=timeline is not None)
    found = report(inputs, runs, skipped, num_steps, list(notes(inputs, chosen)))
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        table.show(found, table.title(inputs, inputs.spec, [run.num_gpus for run in runs]), inputs.spec, _console())
    if timeline is not None:
        _draw(runs, min(period(inputs.spec), _MOST_DRAWN_STEPS), timeline)
        if not as_json:
            _console().print(f"The timeline is in {timeline}.", markup=False, soft_wrap=True)


def search(options: SimulateOptions, timeline: Path | None, *, as_json: bool) -> None:
    """Search for the choices that suit a job, and show them."""
    if timeline is not None:
        picture.check(timeline)
    inputs = reading.read(options)
    job = sim_job(inputs, inputs.spec)
    with _progress("searching …") as progress:
        found = searching.searched(job, inputs.spec, progress)
    own = [StrategyVariant(inputs.spec, is_given=True)]
    report = searching.search_report(inputs, found, list(notes(inputs, own)))
    if as_json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        searching.show_search(report, table.title(inputs, inputs.spec, [total_gpus(inputs.spec)]), _console())
    if timeline is not None:
        _draw_choices(job, found, timeline)
        if not as_json:
            _console().print(f"The timeline is in {timeline}.", markup=False, soft_wrap=True)


def compare(name: str, *, as_json: bool) -> None:
    """Compare predictions with the figures of a paper."""
    if name not in list(Paper):
        raise BadInput(f"--paper: {name!r} is not known; choose one of {', '.join(Paper)}")
    with consoles.errors().status(f"{name} …"):
        found = papers.comparison(Paper(name))
    if as_json:
        typer.echo(papers.as_json(found))
    else:
        papers.show(found, _console())


def _simulated(
    inputs: Inputs, chosen: Sequence[StrategyVariant], gpu_counts: Sequence[int], num_steps: int, *, keeps_spans: bool
) -> list[SimulatedVariant]:
    """Return every variant on every number of GPUs; all jobs are checked before the first one runs."""
    todo = [
        (StrategyVariant(spec, variant.is_given), num_gpus, sim_job(inputs, spec))
        for num_gpus in gpu_counts
        for variant in chosen
        for spec in [with_gpus(variant.spec, num_gpus)]
    ]
    runs = []
    with consoles.errors().status("") as status:
        for variant, num_gpus, job in todo:
            doing = f"{variant.strategy} on {num_gpus} GPUs …"
            status.update(doing)
            if not consoles.errors().is_terminal:
                consoles.errors().print(doing, markup=False)
            try:
                result = run_job(job, num_steps, keeps_spans=keeps_spans and num_gpus == gpu_counts[0])
            except ValueError as error:
                raise BadInput(str(error)) from error
            runs.append(SimulatedVariant(variant, num_gpus, result))
    return runs


@contextmanager
def _progress(doing: str) -> Iterator[Callable[[float], None]]:
    """Show what is done and how far it is: on a terminal in place, in a pipe as a line for every tenth."""
    console, tenths = consoles.errors(), -1
    with console.status(doing) as status:

        def show(share: float) -> None:
            nonlocal tenths
            status.update(f"{doing} {share:.0%}")
            if not console.is_terminal and int(10 * share) > tenths:
                tenths = int(10 * share)
                console.print(f"{doing} {share:.0%}", markup=False)

        yield show


def _draw(runs: Sequence[SimulatedVariant], num_steps: int, path: Path) -> None:
    """Draw the strategies on the first number of GPUs."""
    drawn = [run for run in runs if run.num_gpus == runs[0].num_gpus]
    picture.save([(run.variant.strategy, timeline_of(run.result, num_steps)) for run in drawn], path)


def _draw_choices(job: SimJob, found: SearchResult, path: Path) -> None:
    """Draw the baseline, the job as it is, and the best choice."""
    chosen = list(dict.fromkeys([found.baseline.choice, found.present.choice, found.ranking[0].choice]))
    num_steps = min(_MOST_DRAWN_STEPS, max(choice.num_rounds(job.shape) for choice in chosen))
    panels = [(str(one), timeline_of(run_job(one.applied_to(job), num_steps), num_steps)) for one in chosen]
    picture.save(panels, path)


def _strategies(text: str | None) -> list[Strategy]:
    if text is None:
        return list(COMPARED)
    found = []
    for name in _split(text, "--strategies"):
        if name not in list(COMPARED):
            raise BadInput(f"--strategies: {name!r} is not known; choose from {', '.join(COMPARED)}")
        found.append(Strategy(name))
    return found


def _gpu_counts(text: str | None, inputs: Inputs) -> list[int]:
    if text is None:
        return [total_gpus(inputs.spec)]
    found = []
    for name in _split(text, "--gpus"):
        if not name.isascii() or not name.isdigit() or int(name) < 1:
            raise BadInput(f"--gpus: {name!r} is no number of GPUs; give some as 8,16,32")
        found.append(int(name))
    return list(dict.fromkeys(found))


def _split(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise BadInput(f"{option}: something is missing between the commas of {text!r}")
    return names


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
