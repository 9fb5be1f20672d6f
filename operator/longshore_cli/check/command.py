"""The command and its options."""

from pathlib import Path
from typing import Annotated

import typer

from longshore_cli.errors import EXIT_FAILED


def check(
    file: Annotated[Path, typer.Argument(help="YAML file with one RLJob.")],
    model: Annotated[Path | None, typer.Option(help="Directory of this machine that model.path stands for.")] = None,
    data: Annotated[Path | None, typer.Option(help="File of this machine that data.path stands for.")] = None,
    warm_start_data: Annotated[
        Path | None, typer.Option(help="File of this machine that algorithm.warmStart.data.path stands for.")
    ] = None,
    gpu_type: Annotated[
        str | None, typer.Option(help="GPU of the nodes, as in `simulate`; unset: what workers.nodeSelector asks for.")
    ] = None,
    gpu_memory: Annotated[str | None, typer.Option(help="Memory of a GPU instead of its name, as 80Gi.")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Leave out a check, by its name; may be repeated.")] = None,
    python: Annotated[
        str | None, typer.Option(help="Python of this machine that has verifiers; unset: that of the environment.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print findings for programs.")] = False,
) -> None:
    """Check a job with its model and data; the exit code is 0 when nothing is wrong."""
    from longshore.checks.result import CheckOutcome
    from longshore_cli.check import report, run

    options = run.CheckOptions(model, data, warm_start_data, gpu_type, gpu_memory, run.named(skip or ()), python)
    found = run.checked(file, options)
    report.show(found, as_json=as_json)
    if any(result.outcome is CheckOutcome.FAILED for result in found):
        raise typer.Exit(EXIT_FAILED)
