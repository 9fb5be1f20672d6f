"""Package boundary = dependency boundary = image boundary."""

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

CORE = {
    "longshore", "annotated-types", "cel-expr-python", "pydantic", "pydantic-core", "typing-extensions",
    "typing-inspection",
}  # fmt: skip
HEAVY = {"torch", "ray", "vllm", "transformers", "megatron"}
UV = [sys.executable, "-m", "uv", "pip"]


@pytest.fixture(scope="module")
def source(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a build starts from: no build folders, caches or metadata of this checkout."""
    copy = tmp_path_factory.mktemp("build") / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for folder in ("runtime", "operator", "devcluster", "charts", "manifests"):
        shutil.copytree(root / folder, copy / folder, symlinks=True, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / file, copy / file)
    return copy


@pytest.fixture(scope="module")
def installed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both distributions as their wheels hold them, outside the checkout."""
    target = tmp_path_factory.mktemp("installed")
    for distribution in (source, source / "devcluster"):
        command = [*UV, "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(target)]
        subprocess.run([*command, "--python", sys.executable, str(distribution)], check=True, timeout=300)
    return target


def run(installed: Path, directory: Path, *command: str) -> str:
    """Run a module of what is installed, in a directory that is no checkout."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "LONGSHORE_HOME": str(directory)}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=directory, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(folder: Path) -> dict[str, bytes]:
    """Path below the folder -> content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_core_alone_installs_pydantic_cel_and_nothing_else(source: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    subprocess.run([*UV, "install", "--quiet", "--python", str(python), str(source)], check=True, timeout=300)
    listed = subprocess.run(
        [*UV, "list", "--python", str(python), "--format", "json"], capture_output=True, text=True, check=True
    )
    assert {package["name"] for package in json.loads(listed.stdout)} == CORE
    decides = "import longshore.api.crd, longshore.policy.strategies, longshore.policy.routing"
    subprocess.run([str(python), "-I", "-c", decides], check=True)


def test_the_chart_and_the_examples_are_installed_with_the_command_line(
    installed: Path, source: Path, tmp_path: Path
) -> None:
    bundled = installed / "longshore_cli" / "bundled"
    assert files(bundled / "charts") == files(source / "charts")
    assert files(bundled / "manifests") == files(source / "manifests")
    printed = run(installed, tmp_path, "longshore_cli", "examples", "quickstart")
    assert printed == (source / "manifests/quickstart.yaml").read_text()


def test_the_embedded_cluster_is_its_own_distribution_and_runs_outside_a_checkout(
    installed: Path, tmp_path: Path
) -> None:
    [owner] = installed.glob("longshore_devcluster-*.dist-info")
    [other] = installed.glob("longshore-*.dist-info")
    assert "longshore_devcluster/__main__.py" in (owner / "RECORD").read_text()
    assert "longshore_devcluster/" not in (other / "RECORD").read_text()
    place = ["--data-dir", str(tmp_path / "cluster")]
    run(installed, tmp_path, "longshore_devcluster", "up", "--detach", *place)
    try:
        assert run(installed, tmp_path, "longshore_cli", "examples").startswith("april")
        kubectl = ["kubectl", "--kubeconfig", str(tmp_path / "cluster/kubeconfig"), "get", "nodes", "-o", "name"]
        assert subprocess.run(kubectl, capture_output=True, text=True, check=True).stdout.startswith("node/")
    finally:
        run(installed, tmp_path, "longshore_devcluster", "down", *place)


@pytest.mark.parametrize(
    "program", ["longshore_operator.main", "longshore_cli.main", "longshore_devcluster.cluster", "longshore.client"]
)
def test_programs_outside_the_pods_import_neither_torch_nor_ray(program: str) -> None:
    say = f"import sys, {program}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", say], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())
