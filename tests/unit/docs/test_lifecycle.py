"""Every row of the page about losses and bad surroundings names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "lifecycle.md").read_text(encoding="utf-8")
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
}


def rows() -> list[str]:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith("| what ")]


def test_every_row_is_shown_by_a_test() -> None:
    assert len(rows()) > 30
    assert [row for row in rows() if not re.findall(r"`test_\w+`", row.rsplit(" | ", 1)[1])] == []


def test_every_test_that_is_named_exists() -> None:
    assert [name for name in re.findall(r"`(test_\w+)`", PAGE) if name not in TESTS] == []
