"""Commands that the pages show: the files that they read are there or shown, and what they write is not in the way."""

import re
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[3]
_PAGES: Final = (_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md")))
_READS: Final = re.compile(
    r"^(?:\$ )?(?:kubectl (?:apply|create)|longshore submit)\b.* (?P<file>[\w./-]+\.yaml)", re.MULTILINE
)
_FETCHES: Final = re.compile(r"^(?:\$ )?longshore fetch \S+ (?:\./)?(?P<directory>[\w-]+)", re.MULTILINE)
_FENCED: Final = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_a_manifest_that_is_applied_is_in_the_repository_or_the_page_speaks_of_it(page: Path) -> None:
    """As in: save this claim as `claim.yaml`."""
    text = page.read_text(encoding="utf-8")
    prose = _FENCED.sub("", text)
    for read in _READS.finditer(text):
        name = read["file"]
        if name.removesuffix(".yaml").isupper():  # A name for any file.
            continue
        assert (_ROOT / name).is_file() or f"`{name}`" in prose, f"{page.name} applies {name}, and shows it nowhere"


def test_what_the_tutorials_write_into_the_checkout_is_ignored_by_git() -> None:
    ignored = (_ROOT / ".gitignore").read_text().splitlines()
    written = {
        found["directory"]
        for page in (_ROOT / "docs" / "tutorials").glob("*.md")
        for found in _FETCHES.finditer(page.read_text(encoding="utf-8"))
    }
    assert "my-model" in written
    assert {f"/{directory}/" for directory in written} <= set(ignored)
