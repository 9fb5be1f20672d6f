"""Replace parts of pages that a program writes, between comments with their name."""

from pathlib import Path


def replace(page: Path, name: str, content: str) -> None:
    """Replace the part of this name."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    before, rest = page.read_text(encoding="utf-8").split(begin)
    page.write_text(before + begin + content + end + rest.split(end)[1], encoding="utf-8")
