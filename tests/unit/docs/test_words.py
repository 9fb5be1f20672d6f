"""The pages use present-day English."""

import re
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[3]
_GENERATED: Final = "reference/rljob.md"
_AVOIDED: Final = re.compile(
    r"\b(anew|likewise|whoever|told|owed?|owes|seldom|dear|vain|thereby|mended)\b", re.IGNORECASE
)


def test_no_page_uses_a_word_that_technical_writing_avoids() -> None:
    pages = [*sorted(_ROOT.glob("*.md")), *sorted((_ROOT / "docs").rglob("*.md"))]
    assert len(pages) > 40
    assert [
        f"{page.relative_to(_ROOT)}:{number}: {word[0]}"
        for page in pages
        if not page.match(_GENERATED)
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
        for word in _AVOIDED.finditer(line)
    ] == []
