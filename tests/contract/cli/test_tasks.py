"""`longshore tasks`: mistakes are refused in one sentence."""

import sys
from pathlib import Path

import pytest

from longshore_cli.errors import CliError
from longshore_cli.tasks import tasks
from tests.unit.cli.simulated import TOOLS, manifest

VERIFIERS = [
    {"name": name, "kind": "Verifiers", "domains": [name], "verifiers": {"id": "some", "python": "/no/python"}}
    for name in ("one", "two")
]


def test_a_job_without_verifiers_has_no_tasks(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="the job has no environment of kind Verifiers"):
        tasks(manifest(tmp_path, environments=TOOLS, data__chat={}), None, 10, None)


def test_one_of_several_environments_is_to_be_named(tmp_path: Path) -> None:
    file = manifest(tmp_path, environments=VERIFIERS, data__chat={}, data__domainField="domain")
    with pytest.raises(CliError, match="the job has: one, two"):
        tasks(file, None, 10, None)


def test_a_python_that_cannot_be_run_is_named_with_the_option_for_another(tmp_path: Path) -> None:
    file = manifest(tmp_path, environments=VERIFIERS[:1], data__chat={}, data__domainField="domain")
    for python in (None, str(tmp_path)):
        with pytest.raises(CliError, match=r"python: .*(No such file|Permission denied)") as refused:
            tasks(file, None, 10, python)
        assert refused.value.fix == "Name one of this machine with --python."


def test_an_error_of_the_program_is_one_sentence_without_its_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = manifest(tmp_path, environments=VERIFIERS[:1], data__chat={}, data__domainField="domain")
    with pytest.raises(CliError) as refused:
        tasks(file, None, 10, sys.executable)
    assert str(refused.value) == (
        f"environments[one].verifiers: its tasks cannot be read (RuntimeError: {sys.executable} has no package "
        "verifiers; install it there)"
    )
    assert capfd.readouterr() == ("", "")
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(CliError, match=r"its tasks cannot be read \(its program ended with exit code 3\)"):
        tasks(file, None, 10, str(program))
