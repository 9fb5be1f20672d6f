"""`longshore check`: what is wrong with a job, before anything is submitted. Needs no cluster and no GPU."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from longshore_cli import format as fmt
from longshore_cli.errors import EXIT_FAILED
from longshore_cli.plain import plain

if TYPE_CHECKING:
    from longshore.api.spec import RLJobSpec

_MOST_SHOWN: Final = 20


@dataclass(frozen=True)
class Findings:
    """Of one job."""

    mistakes: list[str]
    not_checked: list[str]
    """What there was nothing to look at for."""


def check(
    file: Annotated[Path, typer.Argument(help="YAML file with one RLJob.")],
    model: Annotated[Path | None, typer.Option(help="Directory of this machine that model.path stands for.")] = None,
    data: Annotated[Path | None, typer.Option(help="File of this machine that data.path stands for.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print findings for programs.")] = False,
) -> None:
    """Check a job with its model and data; the exit code is 0 when nothing is wrong."""
    from longshore_cli.simulate.inputs import read_job

    found = findings(read_job(file).spec, model, data)
    if as_json:
        typer.echo(json.dumps({"mistakes": found.mistakes, "notChecked": found.not_checked}, indent=2))
    else:
        _show(found, Console(highlight=False))
    if found.mistakes:
        raise typer.Exit(EXIT_FAILED)


def findings(spec: "RLJobSpec", model: Path | None, data: Path | None) -> Findings:
    """What is wrong with a job, and what could not be looked at."""
    from longshore.api.model import DataFormat
    from longshore.api.reward import RewardKind
    from longshore.checks.job import data_mistakes, model_mistakes

    mistakes: list[str] = []
    left: list[str] = []
    if model is not None:
        mistakes += model_mistakes(spec, model)
    elif spec.model.builtin is None:
        left.append(f"the model {spec.model.path or spec.model.hub!r}: name a copy of it with --model")
    if spec.data.format is not DataFormat.JSONL or spec.data.sources is not None:
        left.append("the data: only a single JSONL file is checked here")
    elif data is not None:
        mistakes += data_mistakes(spec, data)
    elif spec.data.builtin is None:
        left.append(f"the data {spec.data.path or spec.data.hub!r}: name a copy of it with --data")
    left += [f"the import path of reward {one.name!r}: the job tries it when it starts"
             for one in spec.reward.functions if one.kind is RewardKind.PYTHON]  # fmt: skip
    return Findings(mistakes, left)


def _show(found: Findings, console: Console) -> None:
    for mistake in found.mistakes[:_MOST_SHOWN]:
        console.print(plain(mistake), style="red", markup=False, soft_wrap=True)
    if (more := len(found.mistakes) - _MOST_SHOWN) > 0:
        console.print(f"and {fmt.count(more, 'mistake')} more", style="red")
    for what in found.not_checked:
        console.print(f"not checked: {plain(what)}", style="dim", markup=False, soft_wrap=True)
    if not found.mistakes:
        console.print("No mistakes were found.", style="green")
