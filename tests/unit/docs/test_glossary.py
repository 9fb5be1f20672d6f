"""The glossary names fields, code and metrics that exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from longshore.api.crd import rljob_crd

_ROOT: Final = Path(__file__).parents[3]
_REFERENCE: Final = _ROOT / "docs" / "reference"
_CODE: Final = (_ROOT / "runtime", _ROOT / "operator", _ROOT / "devcluster")
_PROPERTIES: Final = rljob_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


def _named() -> Iterator[str]:
    """What the last cells of the tables of terms name."""
    for row in re.findall(
        r"^\| \*\*.*\| (.*?) \|$", (_REFERENCE / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE
    ):
        yield from re.findall(r"`([^`]+)`", row)


def _is_field(path: str) -> bool:
    schema: dict[str, Any] = {"properties": _PROPERTIES}
    for name in path.replace("[]", "").split("."):
        schema = schema.get("items", schema).get("properties", {}).get(name, {})
    return bool(schema)


def _classes() -> set[str]:
    files = [path.read_text(encoding="utf-8") for folder in _CODE for path in folder.rglob("*.py")]
    return {name for text in files for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}


def _metrics() -> Iterator[str]:
    """Names of the reference; within a row, those without a family are of the family before them."""
    yield from re.findall(r"longshore_operator_\w+", (_REFERENCE / "operator.md").read_text(encoding="utf-8"))
    for row in re.findall(r"^\| (`.*?) \|", (_REFERENCE / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE):
        family = ""
        for name in re.findall(r"`([^`]+)`", row):
            family = name.rpartition("/")[0] or family
            yield name if "/" in name else f"{family}/{name}"


def test_every_name_is_that_of_a_field_a_class_a_module_or_a_metric() -> None:
    names = list(_named())
    known = {*_classes(), *_metrics()}
    assert len(names) > 50
    assert [
        name
        for name in names
        if name not in known and not _is_field(name) and not any((folder / name).exists() for folder in _CODE)
    ] == []
