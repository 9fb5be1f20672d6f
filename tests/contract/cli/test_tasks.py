"""`longshore tasks`: mistakes that it refuses before a program starts."""

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
