"""The public workflows run every test, and nothing that could change under them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.browser import REQUIRE_BROWSER
from tests.prometheus import REQUIRE_PROMETHEUS

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
WORKFLOWS: dict[str, dict[str, Any]] = {file.stem: yaml.safe_load(file.read_text()) for file in FILES}
JOBS: dict[str, Any] = WORKFLOWS["ci"]["jobs"]
STEPS = [step for workflow in WORKFLOWS.values() for job in workflow["jobs"].values() for step in job["steps"]]


def test_every_test_belongs_to_exactly_one_part() -> None:
    parts = [Path(path) for part in JOBS["test"]["strategy"]["matrix"]["tests"] for path in part.split()]
    files = [
        path.relative_to(ROOT)
        for tests in (ROOT / "tests", ROOT / "devcluster/tests")
        for path in tests.rglob("test_*.py")
    ]
    assert len({file.parts[0] for file in files}) == 2
    for file in files:
        assert len([part for part in parts if file.is_relative_to(part)]) == 1, file


def test_actions_are_pinned_by_commit() -> None:
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert used
    for action in used:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action), action


def test_they_get_no_rights_and_no_secrets() -> None:
    assert set(WORKFLOWS) == {"ci", "soak"}
    for file in FILES:
        assert WORKFLOWS[file.stem]["permissions"] == {"contents": "read"}
        assert "secrets." not in file.read_text()


TESTS = pytest.mark.parametrize("job", [JOBS["test"], WORKFLOWS["soak"]["jobs"]["soak"]], ids=["ci", "soak"])


@TESTS
def test_the_whole_sandbox_is_tested_and_never_skipped(job: dict[str, Any]) -> None:
    """Ubuntu 24.04 keeps programs from user namespaces."""
    assert job["env"]["LONGSHORE_REQUIRE_NAMESPACES"] == "1"
    commands = [step.get("run", "") for step in job["steps"]]
    (opened,) = [
        index for index, command in enumerate(commands) if command.endswith("apparmor_restrict_unprivileged_userns=0")
    ]
    assert opened < next(index for index, command in enumerate(commands) if re.search("pytest|make soak", command))
    assert all("if" not in step for step in job["steps"])


@TESTS
def test_pages_are_tested_in_a_browser_and_alerts_in_prometheus_and_never_skipped(job: dict[str, Any]) -> None:
    assert job["env"][REQUIRE_BROWSER] == job["env"][REQUIRE_PROMETHEUS] == "1"
    assert any(step.get("run", "").endswith("prometheus") for step in job["steps"])


def test_properties_are_tried_on_new_examples_every_week() -> None:
    """`ci` tries the same ones in every run."""
    soak = WORKFLOWS["soak"]
    (on,) = [value for key, value in soak.items() if str(key) == "True"]  # YAML 1.1 reads `on` as a truth value.
    assert on["schedule"][0]["cron"].endswith(" 6")
    assert soak["jobs"]["soak"]["steps"][-1]["run"] == 'make soak TESTS="${{ matrix.tests }}"'
    parts = soak["jobs"]["soak"]["strategy"]["matrix"]["tests"]
    assert {"tests/unit devcluster/tests", "tests/contract"} <= set(parts)


def test_the_images_of_the_operator_and_for_cpus_are_built_and_run() -> None:
    job = JOBS["images"]
    smokes = {one["image"]: one["smoke"] for one in job["strategy"]["matrix"]["include"]}
    assert set(smokes) == {"operator", "runtime-cpu"}
    assert re.fullmatch(r"docker run .*\blongshore-operator:ci run --help", smokes["operator"])
    assert re.fullmatch(r"docker run .*\blongshore-runtime:ci-cpu - < images/smoke\.py", smokes["runtime-cpu"])
    built, run = [step["run"] for step in job["steps"] if "run" in step]
    assert built == "make images IMAGES=${{ matrix.image }} VERSION=ci BUILDER=docker"
    assert run == "${{ matrix.smoke }}"
    assert all("if" not in step and "continue-on-error" not in step for step in job["steps"])


def test_what_it_makes_can_be_made() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = [target for step in STEPS for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))]
    assert {"lint", "setup", "images", "soak"} <= set(made) <= targets
