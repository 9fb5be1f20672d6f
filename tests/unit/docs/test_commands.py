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
