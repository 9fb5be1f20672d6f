"""What a run of the tests does beside running them: their random order, and what each file costs."""

from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.conftest import shuffled
from tests.cost import by_file

ITEMS: list[Any] = [SimpleNamespace(path=Path(f"test_{file}.py"), name=name) for file in "abcd" for name in range(5)]


def names(items: list[Any]) -> list[tuple[Path, int]]:
    return [(item.path, item.name) for item in items]


def test_a_seed_gives_every_process_the_same_order_of_all_tests() -> None:
    once, again, other = (names(shuffled(ITEMS, seed)) for seed in (1, 1, 2))
    assert once == again != other
    assert sorted(once) == sorted(names(ITEMS)) != once


def test_tests_of_a_file_stay_together_because_they_share_fixtures() -> None:
    files = [path for path, _ in groupby(item.path for item in shuffled(ITEMS, 1))]
    assert len(files) == 4


def test_a_file_costs_what_its_tests_cost() -> None:
    cost = by_file({"test_a.py::one": 1.5, "test_a.py::Two::three[a::b]": 2.0, "test_b.py::one": 0.25})
    assert cost == {"test_a.py": 3.5, "test_b.py": 0.25}
