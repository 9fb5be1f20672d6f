"""The documentation site: it builds without a warning, reads as it was meant, and needs no other host."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

_ROOT: Final = Path(__file__).parents[3]
_LOADING: Final = {
    "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "embed": "src", "object": "data",
}  # fmt: skip
"""Elements that make a browser fetch something, and the attribute that names it; `link` does so too, by its `rel`."""
_LOADING_RELATIONS: Final = {"stylesheet", "icon", "preload", "preconnect", "prefetch", "modulepreload", "manifest"}


class _Page(HTMLParser):
    """What a page loads, its blocks of code, its numbered lists, and its text outside code."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.text = ""
        self.blocks: list[str] = []
        self.num_lists = 0
        self._code = self._block = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in _LOADING or (tag == "link" and _LOADING_RELATIONS & set((values.get("rel") or "").split())):
            self.loads.append(values.get(_LOADING.get(tag, "href")) or "")
        self._code += tag in ("code", "pre", "script", "style")
        self.num_lists += tag == "ol" and not attrs  # The theme has one for search results.
        if tag == "pre":
            self._block += 1
            self.blocks.append("")

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in ("code", "pre", "script", "style")
        self._block -= tag == "pre"

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.text += data
        if self._block:
            self.blocks[-1] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The site, built like `make docs` does: a link or an anchor that leads nowhere ends the build."""
    monkeypatch = pytest.MonkeyPatch()
    request.addfinalizer(monkeypatch.undo)
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    directory = tmp_path_factory.mktemp("site")
    build(load_config(str(_ROOT / "mkdocs.yml"), site_dir=str(directory), strict=True))
    return directory


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, _Page]:
    return {str(path.relative_to(site)): _Page(path) for path in sorted(site.rglob("*.html"))}


def test_nothing_is_loaded_from_another_host(site: Path, pages: dict[str, _Page]) -> None:
    foreign = {name: [url for url in page.loads if re.match(r"(?i)([a-z]+:)?//", url)] for name, page in pages.items()}
    assert {name: urls for name, urls in foreign.items() if urls} == {}
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert styles
    assert [
        url for style in styles for url in re.findall(r"(?:url\(|@import\s*)[\"']?((?:https?:)?//[^)\"']+)", style)
    ] == []


def test_everything_that_is_loaded_is_there(site: Path, pages: dict[str, _Page]) -> None:
    missing = {
        (name, url)
        for name, page in pages.items()
        for url in page.loads
        if not url.startswith(("data:", "/")) and not (site / name).parent.joinpath(url.split("?")[0]).exists()
    }
    assert missing == set()
