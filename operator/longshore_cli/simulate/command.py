"""The command and its options."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from longshore_cli import options
from longshore_cli.simulate.errors import BadInput
from longshore_client.target import Target

if TYPE_CHECKING:
    from longshore_cli.simulate.inputs import RecordedJob

_MOST_ROUNDS: Final = 100
"""The newest rounds that --from reads: lengths change as a job learns."""


def simulate(
    file: Annotated[Path | None, typer.Argument(help="YAML file with one RLJob.")] = None,
    lengths: Annotated[
        Path | None, typer.Option(help="Recorded response lengths, .csv or .jsonl; unset: a long-tailed default.")
    ] = None,
    recorded: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="JOB",
            help="An RLJob whose recorded lengths and profile are used; without FILE its spec, too.",
        ),
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
    data: Annotated[
        Path | None, typer.Option(help="JSONL file of this machine that data.path stands for: lengths of prompts.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps to simulate; unset: whole periods of tail batching, 20 or more.")
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Search for the choices that suit the job best, with their settings.")
    ] = False,
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
    image: options.Image = None,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Simulate a job under every strategy: step time, throughput, bubbles, GPU hours. Only --from needs a cluster."""
    from longshore_cli.simulate import run
    from longshore_cli.simulate.inputs import SimulateOptions

    if paper is not None:
        others = (file, recorded, lengths, strategies, gpus, gpu_type, model, profile, data, steps, timeline)
        if strict_only or search or any(other is not None for other in others):
            raise BadInput("--paper simulates the jobs of that paper; besides it only --json has a meaning.")
        run.compare(paper, as_json=as_json)
        return
    if file is None and recorded is None:
        raise BadInput(
            "There is nothing to simulate.",
            "Name the YAML file of an RLJob, an RLJob of the cluster with --from, or a paper with --paper.",
        )
    if lengths is not None and recorded is not None:
        raise BadInput("--lengths and --from exclude each other.", "Give one of them.")
    if search and (strict_only or any(other is not None for other in (strategies, gpus, steps))):
        raise BadInput("--search chooses strategies and steps itself: leave out what chooses them.")
    source = None if recorded is None else fetched(Target(kubeconfig, context, namespace), recorded, image)
    inputs = SimulateOptions(file, model, gpu_type, lengths, profile, source, data)
    if search:
        run.search(inputs, timeline, as_json=as_json)
        return
    run.simulate(inputs, run.SimulationChoice(strategies, gpus, steps, strict_only), timeline, as_json=as_json)


def fetched(target: Target, job: str, image: str | None) -> "RecordedJob":
    """Return what a job of the cluster has recorded."""
    from longshore.record.lengths import recorded_lengths
    from longshore_cli import records
    from longshore_cli.simulate.inputs import RecordedJob

    kube = target.connect()
    found = records.fetch(kube, job, records.Rounds(newest=_MOST_ROUNDS), with_profile=True, image=image)
    return RecordedJob(job, kube.job(job), recorded_lengths(found.records), found.profile)
