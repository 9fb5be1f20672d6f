"""The glossary names fields, code and metrics that exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from longshore.api.crd import rljob_crd

_ROOT: Final = Path(__file__).parents[3]
_GLOSSARY: Final = _ROOT / "docs" / "reference" / "glossary.md"
_PROPERTIES: Final = rljob_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


def _named(header: str) -> Iterator[str]:
    """What the cells of a column name, over all tables of the page."""
    column: int | None = None
    for line in _GLOSSARY.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else None
        if cells is None:
            column = None
        elif "term" in cells:
            column = cells.index(header)
        elif column is not None:
            yield from re.findall(r"`([^`]+)`", cells[column])


def _defined() -> set[str]:
    files = [path for folder in ("runtime", "operator") for path in (_ROOT / folder).rglob("*.py")]
    return {
        name for path in files for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }


@pytest.mark.parametrize("path", sorted(set(_named("field"))))
def test_fields_are_in_the_api(path: str) -> None:
    schema: dict[str, Any] = {"properties": _PROPERTIES}
    for name in path.replace("[]", "").split("."):
        schema = schema.get("items", schema)["properties"][name]


def test_code_is_there() -> None:
    classes = _defined()
    missing = [
        name
        for name in _named("code")
        if name not in classes and not any((_ROOT / folder / name).exists() for folder in ("runtime", "operator"))
    ]
    assert missing == []


def _step_metrics() -> Iterator[str]:
    """Names of the reference; within a row, those without a family are of the family before them."""
    page = (_ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE):
        family = ""
        for name in re.findall(r"`([^`]+)`", row):
            family = name.rpartition("/")[0] or family
            yield name if "/" in name else f"{family}/{name}"


def test_metrics_are_in_the_reference() -> None:
    operator = (_ROOT / "docs" / "reference" / "operator.md").read_text(encoding="utf-8")
    known = {*_step_metrics(), *re.findall(r"longshore_operator_\w+", operator)}
    assert [name for name in _named("metric") if name not in known] == []
