"""The command and its options."""

from pathlib import Path
from typing import Annotated

import typer

from longshore_cli.simulate.errors import BadInput


def simulate(
    file: Annotated[Path | None, typer.Argument(help="YAML file with one RLJob.")] = None,
    lengths: Annotated[
        Path | None, typer.Option(help="Recorded response lengths, .csv or .jsonl; unset: a long-tailed default.")
    ] = None,
    strategies: Annotated[
        str | None, typer.Option(help="Strategies, with commas; unset: all that the manifest can have.")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="Numbers of GPUs, with commas; unset: those of the manifest.")
    ] = None,
    gpu_type: Annotated[str | None, typer.Option(help="Kind of GPU; unset: H100.")] = None,
    model: Annotated[str | None, typer.Option(help="Model or size, as Qwen2.5-7B or 13B; needed with a path.")] = None,
    profile: Annotated[Path | None, typer.Option(help="YAML file with measured costs.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps to simulate; unset: whole periods of tail batching, 20 or more.")
    ] = None,
    strict_only: Annotated[
        bool, typer.Option("--strict-only", help="Leave out what trains on tokens of older weights.")
    ] = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Draw what every GPU does when, into this .svg or .png file.")
    ] = None,
    paper: Annotated[
        str | None, typer.Option(help="Instead of a job, compare with a published paper, as rollpacker.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures for programs.")] = False,
) -> None:
    """Simulate a job under every strategy: step time, throughput, bubbles, GPU hours. Needs no cluster."""
    from longshore_cli.simulate import run
    from longshore_cli.simulate.inputs import Options

    if paper is not None:
        others = (file, lengths, strategies, gpus, gpu_type, model, profile, steps, timeline)
        if strict_only or any(other is not None for other in others):
            raise BadInput("--paper simulates the jobs of that paper; besides it only --json has a meaning.")
        run.compare(paper, as_json=as_json)
        return
    if file is None:
        raise BadInput("There is nothing to simulate.", "Name the YAML file of an RLJob, or a paper with --paper.")
    inputs = Options(file, model, gpu_type, lengths, profile)
    run.simulate(inputs, run.Choice(strategies, gpus, steps, strict_only), timeline, as_json=as_json)
