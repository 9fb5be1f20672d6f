"""The public workflow runs every test, and nothing that could change under it."""

import re
from pathlib import Path
from typing import Any

import yaml

from tests.browser import REQUIRE_BROWSER

ROOT = Path(__file__).parents[3]
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
JOBS: dict[str, Any] = WORKFLOW["jobs"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]


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


def test_it_gets_no_rights_and_no_secrets() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert "secrets." not in (ROOT / ".github/workflows/ci.yml").read_text()


def test_the_whole_sandbox_is_tested_and_never_skipped() -> None:
    """Ubuntu 24.04 keeps programs from user namespaces."""
    job = JOBS["test"]
    assert job["env"]["LONGSHORE_REQUIRE_NAMESPACES"] == "1"
    commands = [step.get("run", "") for step in job["steps"]]
    (opened,) = [
        index for index, command in enumerate(commands) if command.endswith("apparmor_restrict_unprivileged_userns=0")
    ]
    assert opened < next(index for index, command in enumerate(commands) if "pytest" in command)
    assert all("if" not in step for step in job["steps"])


def test_the_pages_are_tested_in_a_browser_and_never_skipped() -> None:
    assert JOBS["test"]["env"][REQUIRE_BROWSER] == "1"


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
    assert {"lint", "setup", "images"} <= set(made) <= targets
