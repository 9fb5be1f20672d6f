"""`longshore tasks`: the tasks of an environment of `verifiers` as rows of data, each with a prompt and its task."""

import importlib.util
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from longshore_cli.errors import CliError

if TYPE_CHECKING:
    from longshore.api.environment import Environment

_PROGRAM: Final = "verifiers_program.py"
_SAID_BYTES: Final = 1 << 16


def tasks(
    file: Annotated[Path, typer.Argument(help="YAML file with one RLJob.")],
    environment: Annotated[str | None, typer.Argument(help="Name of the environment, if there are several.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Largest number of rows: some tasksets never end.")] = 10_000,
    python: Annotated[
        str | None, typer.Option(help="Python of this machine that has verifiers; unset: that of the environment.")
    ] = None,
) -> None:
    """Print the tasks of an environment of kind Verifiers as rows for data.path."""
    from longshore_cli.simulate.inputs import read_job

    found = _chosen(read_job(file, "export").spec.environments, environment)
    assert found.verifiers is not None, "environments of this kind have it"
    package = importlib.util.find_spec("longshore_runtime")
    assert package is not None and package.origin is not None, "the command line is installed with the runtime"
    program = Path(package.origin).parent / "environments" / _PROGRAM
    command = [python or found.verifiers.python, str(program), found.verifiers.id]
    options = [json.dumps(found.verifiers.arguments), "--rows", str(limit)]
    # As `check` finds modules.
    path = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            try:
                done = subprocess.run(
                    [*command, *options, "--control", str(theirs.fileno())],
                    check=False,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": path},
                    pass_fds=[theirs.fileno()],
                )
            except OSError as error:
                fix = "Name one of this machine with --python."
                raise CliError(f"{found.code_field}.python: {error}", fix) from error
        said = ours.recv(_SAID_BYTES)
    if said or done.returncode:
        problem = json.loads(said)["error"] if said else f"its program ended with exit code {done.returncode}"
        raise CliError(f"{found.code_field}: its tasks cannot be read ({problem})")


def _chosen(environments: "list[Environment]", name: str | None) -> "Environment":
    found = [one for one in environments if one.verifiers is not None and name in (None, one.name)]
    if len(found) != 1:
        names = ", ".join(one.name for one in environments if one.verifiers is not None)
        if not names:
            raise CliError("spec.environments: the job has no environment of kind Verifiers", "Name another file.")
        raise CliError(f"name one environment of kind Verifiers; the job has: {names}")
    return found[0]
