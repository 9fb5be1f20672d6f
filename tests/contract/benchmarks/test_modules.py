"""Benchmarks are run by hand, rarely: what they use of one another and of Longshore is there."""

import importlib
from pathlib import Path

import benchmarks
import pytest

FOLDER = Path(benchmarks.__path__[0])
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_can_be_imported(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    assert module.__doc__
