"""The chart and the example jobs: they come with the command line, which thus works outside a checkout."""

import re
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Final

import typer

from longshore_cli.errors import CliError

_BUNDLED: Final = Path(__file__).parent / "bundled"
"""Links to the folders of the repository; a wheel holds what they link to."""

CHART: Final = (_BUNDLED / "charts" / "longshore").resolve()
_MANIFESTS: Final = (_BUNDLED / "manifests").resolve()


def manifest(name: str) -> Path:
    """Return the file of an example job.

    Raises:
        CliError: there is none of that name; with those that there are.
    """
    path = _MANIFESTS / f"{name}.yaml"
    if path not in _manifests():
        raise CliError(f"There is no example {name!r}.", f"There are {', '.join(path.stem for path in _manifests())}.")
    return path


def command_path(path: Path) -> Path:
    """Return the path as a command in the current directory may name it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def examples(
    name: Annotated[str | None, typer.Argument(help="Example to print; unset: list them.")] = None,
) -> None:
    """List the example jobs, or print one: `longshore examples quickstart > job.yaml`."""
    if name is not None:
        typer.echo(manifest(name).read_text(encoding="utf-8"), nl=False)
        return
    names = {path.stem: _summary(path) for path in _manifests()}
    width = max(map(len, names))
    for stem, summary in names.items():
        typer.echo(f"{stem:<{width}}  {summary}")


def _manifests() -> list[Path]:
    return sorted(_MANIFESTS.glob("*.yaml"))


def _summary(path: Path) -> str:
    """Return the first sentence, up to a colon, of the comment at its head."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines))
    return re.split(r"[.:;](?:\s|$)", comment, maxsplit=1)[0]
