"""Pages and code use present-day English."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[3]
_GENERATED: Final = "reference/rljob.md"
_AVOIDED: Final = re.compile(
    r"(?<![a-z])(anew|likewise|whoever|told|owed?|owes|seldom|dear|vain|thereby|mended|learnt)(?![a-z])", re.IGNORECASE
)
_PACKAGES: Final = ("runtime", "operator", "devcluster", "benchmarks", "tests")
_EXEMPT: Final = {"devcluster/longshore_devcluster/apiserver/openapi/documents.py", "tests/unit/docs/test_words.py"}
"""Sentences of Kubernetes, and the list of words."""


def avoided_words(files: Iterable[Path]) -> list[str]:
    return [
        f"{file.relative_to(_ROOT)}:{number}: {word[0]}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        for word in _AVOIDED.finditer(line)
    ]


def test_no_page_uses_a_word_that_technical_writing_avoids() -> None:
    pages = [*sorted(_ROOT.glob("*.md")), *sorted((_ROOT / "docs").rglob("*.md"))]
    assert len(pages) > 40
    assert avoided_words(page for page in pages if not page.match(_GENERATED)) == []


def test_no_name_no_docstring_and_no_test_does_either() -> None:
    modules = [module for package in _PACKAGES for module in sorted((_ROOT / package).rglob("*.py"))]
    assert len(modules) > 500
    assert avoided_words(one for one in modules if str(one.relative_to(_ROOT)) not in _EXEMPT) == []
