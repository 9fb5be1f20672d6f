"""The command and its options."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from longshore_cli.errors import EXIT_FAILED


class Origin(StrEnum):
    """Whose configuration it is."""

    VERL = "verl"
    TRL = "trl"


def convert(
    settings: Annotated[
        list[str],
        typer.Argument(
            help="A YAML, JSON or Python file, settings as key=value, or both.", metavar="[FILE] [KEY=VALUE]..."
        ),
    ],
    origin: Annotated[
        Origin | None, typer.Option("--from", help="Whose configuration it is; unset: what its keys look like.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the job; unset: that of the experiment.")] = None,
    claim: Annotated[str, typer.Option(help="PersistentVolumeClaim with model and data.")] = "shared-models",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the RLJob goes; unset: standard output.")
    ] = None,
) -> None:
    """Turn a configuration of verl or TRL into an RLJob, and report what it leaves out and why."""
    import yaml
    from rich.console import Console

    from longshore_cli.convert import report, sources
    from longshore_cli.convert.conversion import convert as converted
    from longshore_cli.convert.systems import job_name, system_of
    from longshore_client.plain import plain

    if name:
        _check_name(name)
    source = sources.read(settings)
    system = system_of(source.given, origin)
    fixed = {"metadata.name": name or job_name(source.given), "spec.storage.claimName": claim}
    found = converted(system, source.given, fixed)
    errors = Console(stderr=True, highlight=False)
    for line in report.lines(found, system, source.given, source.computed):
        errors.print(plain(line), markup=False, soft_wrap=True)
    if found.job is None:
        raise typer.Exit(EXIT_FAILED)
    manifest = yaml.safe_dump(found.job, sort_keys=False, allow_unicode=True)
    if out is None:
        typer.echo(manifest, nl=False)
    else:
        _write(out, manifest)


def _check_name(name: str) -> None:
    import re

    from longshore.api import names
    from longshore_cli.simulate.errors import BadInput

    for is_kept, rule in (
        (re.fullmatch(names.JOB_NAME_PATTERN, name), names.JOB_NAME_FORM_RULE),
        (len(name) <= names.MAX_JOB_NAME_LENGTH, names.JOB_NAME_LENGTH_RULE),
    ):
        if not is_kept:
            raise BadInput(f"--name {name}: the {rule}.")


def _write(out: Path, manifest: str) -> None:
    from longshore_cli.simulate.errors import BadInput

    try:
        out.write_text(manifest, encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"--out: {out} cannot be written: {error.strerror}.", "Name a file in a directory that exists."
        ) from error
