"""The public workflow runs every test, and nothing that could change under it."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
JOBS: dict[str, Any] = WORKFLOW["jobs"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]


def test_every_test_belongs_to_exactly_one_part() -> None:
    parts = [Path(path) for part in JOBS["test"]["strategy"]["matrix"]["tests"] for path in part.split()]
    files = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    assert files
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


def test_what_it_makes_can_be_made() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = [target for step in STEPS for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))]
    assert {"lint", "setup", "images"} <= set(made) <= targets
