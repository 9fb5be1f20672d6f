"""A report on the terminal."""

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from longshore.api.rollout import OnPolicy
from longshore.api.spec import RLJobSpec
from longshore_cli import format as fmt
from longshore_cli.simulate.inputs import Inputs
from longshore_cli.simulate.report import Report, StrategyResult
from longshore_cli.simulate.variants import num_training_gpus

_FIGURES: Final = (
    "step", "tokens/s", "bubble", "GPU h", "stale", "bias", "speedup", "per token",
)  # fmt: skip


def title(inputs: Inputs, spec: RLJobSpec, num_gpus: Sequence[int]) -> str:
    """Return the job in one line."""
    algorithm, engine = spec.algorithm, spec.rollout.engine
    gpus = ", ".join(map(str, dict.fromkeys(num_gpus)))
    if num_training := num_training_gpus(spec):
        gpus += f" + {num_training}"
    return (
        f"{inputs.name}: {inputs.model.name} on {gpus} x {inputs.gpu.name}, TP {engine.tensor_parallel_size}, "
        f"{algorithm.prompts_per_step} x {algorithm.responses_per_prompt} responses "
        f"up to {algorithm.max_response_tokens:,} tokens"
    )


def outcomes_table(report: Report) -> Table:
    """Return a row for every strategy, in sections by number of GPUs."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    drawn.add_column("GPUs", justify="right")
    drawn.add_column("strategy", no_wrap=True)
    for name in _FIGURES:
        drawn.add_column(name, justify="right", no_wrap=True)
    for index, one in enumerate(report.outcomes):
        following = report.outcomes[index + 1 : index + 2]
        ends_section = any(other.num_gpus != one.num_gpus for other in following)
        drawn.add_row(*cells(one), style="bold" if one.is_given else "", end_section=ends_section)
    return drawn


def cells(one: StrategyResult) -> tuple[str, ...]:
    """Return a row."""
    relaxed = ", relaxed" if one.on_policy is OnPolicy.RELAXED else ""
    return (
        str(one.num_gpus),
        f"{one.strategy}{relaxed}{' *' if one.is_given else ''}",
        fmt.duration(one.step_s),
        f"{one.tokens_per_s:,.0f}",
        fmt.share(one.bubble_share),
        f"{one.gpu_hours:,.1f}" if one.gpu_hours >= 1 else f"{one.gpu_hours:.2g}",
        fmt.share(one.off_policy_share),
        fmt.share(one.length_bias),
        f"{one.speedup:.2f}x",
        f"{one.token_speedup:.2f}x",
    )


def sentences(report: Report, num_steps: int) -> list[str]:
    """Return what the table leaves out; the advice comes last."""
    steps = f"{fmt.count(report.num_steps, 'step')} simulated; GPU hours are those of all {num_steps:,} steps."
    own = " * is the manifest's own strategy." if any(one.is_given for one in report.outcomes) else ""
    skipped = [f"{one.strategy} is left out: {one.reason}." for one in report.skipped]
    return [steps + own, *report.notes, *skipped]


def show(report: Report, title: str, spec: RLJobSpec, console: Console) -> None:
    """Print everything."""
    console.print(title, style="bold", markup=False, soft_wrap=True)
    console.print(outcomes_table(report))
    for sentence in sentences(report, spec.algorithm.steps):
        console.print(sentence, style="dim", markup=False, soft_wrap=True)
    console.print(report.advice, style="bold green", markup=False, soft_wrap=True)
