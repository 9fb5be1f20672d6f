"""Images are built by what is there, from pinned parts, as users who are not root."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OWN = ("longshore", "longshore-devcluster")
CPU, GPU = ("requirements.lock", "requirements-gpu.lock")


def locked(file: str) -> dict[str, str]:
    """Versions by name; every one of them has hashes."""
    entries = re.split(r"\n(?=\S)", (ROOT / file).read_text().strip())
    versions = {}
    for entry in entries:
        name, version = entry.split()[0].split("==")
        assert "--hash=sha256:" in entry, f"{file}: {name} has no hash"
        versions[name] = version
    return versions


PACKAGES = {
    "runtime/longshore": [],
    "runtime/longshore_kube": ["client"],
    "runtime/longshore_client": ["client"],
    "runtime/longshore_runtime": ["runtime", "vllm-gpu", "vllm-cpu", "trackers"],
    "operator/longshore_operator": ["operator"],
    "operator/longshore_cli": ["cli", "operator"],
}
"""Packages with the extras that they are used with."""
CHECKED_WHEN_IMPORTED = {"pandas", "pyarrow"}
"""Those that the client asks its user to install, for data frames alone."""

UNDER_ANOTHER_PYTHON = "verifiers_program.py"
"""Program that runs under a Python with packages of its own."""


def run_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk over what a program runs, without imports for types alone."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"):
            yield from run_nodes(child)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_declares_what_it_imports(package: str) -> None:
    declared = [*PROJECT["dependencies"], *EXTRAS["client"] * bool(PACKAGES[package])]
    declared += [one for extra in PACKAGES[package] for one in EXTRAS[extra]]
    names = {canonicalize_name(Requirement(one).name) for one in declared}
    paths = [path for path in (ROOT / package).rglob("*.py") if path.name != UNDER_ANOTHER_PYTHON]
    nodes = [node for path in paths for node in run_nodes(ast.parse(path.read_text()))]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    modules = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names
    foreign = {name for name in modules if not name.startswith("longshore")}
    if package.endswith("_client"):
        foreign -= CHECKED_WHEN_IMPORTED
    providers = packages_distributions()
    assert [name for name in sorted(foreign) if not names & set(map(canonicalize_name, providers[name]))] == []


@pytest.mark.parametrize(
    ("file", "extras"),
    [(CPU, [extra for extra in EXTRAS if extra != "vllm-gpu"]), (GPU, ["runtime", "trackers", "vllm-gpu"])],
)
def test_the_lock_files_hold_what_the_project_names_and_hashes_of_everything(file: str, extras: list[str]) -> None:
    versions = locked(file)
    wanted = [*PROJECT["dependencies"], *(one for extra in extras for one in EXTRAS[extra])]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        if name not in OWN:
            assert requirement.specifier.contains(versions[name], prereleases=True), requirement


@pytest.mark.parametrize("image", ["operator", "runtime"])
def test_an_image_checks_its_imports_and_hashes_and_runs_without_root(image: str) -> None:
    lines = (ROOT / f"images/{image}.Dockerfile").read_text().replace("\\\n", " ").splitlines()
    assert "USER 1000" in lines
    assert lines.index("ARG BASE=python:3.11-slim") < lines.index("FROM ${BASE}")
    commands = [command for line in lines if line.startswith("RUN ") for command in line.split("&&")]
    assert any("check_imports.py" in command for command in commands)
    dependencies, itself = [command.split() for command in commands if "uv pip install" in command]
    assert "--require-hashes" in dependencies
    assert {"--no-deps", "--require-build-hashes"} <= set(itself)
