"""Examples of properties."""

from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties import DEEP


def examples_of_a_property() -> list[int]:
    seen = []

    @settings(derandomize=True, database=None, max_examples=200)
    @given(st.integers())
    def property_of_integers(value: int) -> None:
        seen.append(value)

    property_of_integers()
    return seen


@pytest.mark.skipif(DEEP, reason="a deep run looks for new examples")
def test_examples_do_not_depend_on_what_has_been_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = examples_of_a_property()
    (tmp_path / "module_with_a_number.py").write_text("NUMBER = 123456789123\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_module("module_with_a_number")
    assert examples_of_a_property() == before
