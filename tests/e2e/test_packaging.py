"""Package boundary = dependency boundary = image boundary."""

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

CORE = {"longshore", "pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection"}
HEAVY = {"torch", "ray", "vllm", "transformers", "megatron"}


def test_the_core_alone_installs_pydantic_and_nothing_else(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for part in ("runtime", "operator"):
        shutil.copytree(root / part, source / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / part, source / part)
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    uv = [sys.executable, "-m", "uv", "pip"]
    subprocess.run([*uv, "install", "--quiet", "--python", str(python), str(source)], check=True, timeout=300)
    listed = subprocess.run(
        [*uv, "list", "--python", str(python), "--format", "json"], capture_output=True, text=True, check=True
    )
    assert {package["name"] for package in json.loads(listed.stdout)} == CORE
    decides = "import longshore.api.crd, longshore.policy.presets, longshore.policy.routing"
    subprocess.run([str(python), "-I", "-c", decides], check=True)


@pytest.mark.parametrize(
    "program", ["longshore_operator.main", "longshore_cli.main", "longshore_devcluster.cluster", "longshore.client"]
)
def test_programs_outside_the_pods_import_neither_torch_nor_ray(program: str) -> None:
    say = f"import sys, {program}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", say], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())
