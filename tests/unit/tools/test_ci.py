"""The public workflows run every test, skip none that the runner can run, and have no rights."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.browser import REQUIRE_BROWSER
from tests.prometheus import REQUIRE_PROMETHEUS

ROOT = Path(__file__).parents[3]
WORKFLOWS: dict[str, dict[str, Any]] = {
    file.stem: yaml.safe_load(file.read_text()) for file in sorted((ROOT / ".github/workflows").glob("*.yml"))
}
STEPS = [step for workflow in WORKFLOWS.values() for job in workflow["jobs"].values() for step in job["steps"]]
TESTS = pytest.mark.parametrize(
    "job", [WORKFLOWS["ci"]["jobs"]["test"], WORKFLOWS["soak"]["jobs"]["soak"]], ids=["ci", "soak"]
)


@TESTS
def test_every_test_belongs_to_exactly_one_part(job: dict[str, Any]) -> None:
    parts = [Path(path) for part in job["strategy"]["matrix"]["tests"] for path in part.split()]
    files = [
        path.relative_to(ROOT) for tests in ("tests", "devcluster/tests") for path in ROOT.glob(f"{tests}/**/test_*.py")
    ]
    assert {file.parts[0] for file in files} == {"tests", "devcluster"}
    for file in files:
        assert len([part for part in parts if file.is_relative_to(part)]) == 1, file


@TESTS
def test_what_the_runner_can_run_is_never_skipped(job: dict[str, Any]) -> None:
    """Ubuntu 24.04 keeps programs from user namespaces, which the whole sandbox needs."""
    for required in ("LONGSHORE_REQUIRE_NAMESPACES", REQUIRE_BROWSER, REQUIRE_PROMETHEUS):
        assert job["env"][required] == "1"
    commands = [step.get("run", "") for step in job["steps"]]
    assert any(command.endswith("apparmor_restrict_unprivileged_userns=0") for command in commands[:-1])
    assert re.search(r"(\.venv/bin/pytest |make soak TESTS=\")\$\{\{ matrix\.tests \}\}", commands[-1])
    assert not any("if" in step or "continue-on-error" in step for step in job["steps"])


def test_properties_are_tried_on_new_examples_every_week() -> None:
    (on,) = [value for key, value in WORKFLOWS["soak"].items() if str(key) == "True"]  # YAML 1.1 reads `on` as true.
    assert on["schedule"][0]["cron"].endswith(" 6")


def test_workflows_have_no_rights_no_secrets_and_pinned_actions() -> None:
    for workflow in WORKFLOWS.values():
        assert workflow["permissions"] == {"contents": "read"}
        assert "secrets." not in str(workflow)
    for action in (step["uses"] for step in STEPS if "uses" in step):
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action), action


def test_targets_that_workflows_make_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = [target for step in STEPS for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))]
    assert {"lint", "setup", "images", "soak"} <= set(made) <= targets
