"""Add pages to the site that lie outside docs/: the README as its home page, and what the pages link to.

mkdocs calls the functions by name (`hooks` in mkdocs.yml).
"""

import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT: Final = Path(__file__).parents[1]
_PAGES: Final = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "reporting.md": "SECURITY.md",
}
"""Files of the repository by page of the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, the licence and the manifests."""
    others = ("LICENSE", *(str(path.relative_to(_ROOT)) for path in sorted((_ROOT / "manifests").glob("*.yaml"))))
    for page, source in {**_PAGES, **{other: other for other in others}}.items():
        files.append(File.generated(config, page, abs_src_path=str(_ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links that leave docs/ to where the site has their targets."""
    prefix = "(?:docs/)?" if page.file.src_uri in _PAGES else r"\.\./(?=\.\./)"
    return re.sub(rf"\]\({prefix}((?:\.\./)?)([^):#]+)", lambda link: f"]({link[1]}{_name(link[2])}", markdown)


def _name(source: str) -> str:
    return next((page for page, file in _PAGES.items() if file == source), source)
