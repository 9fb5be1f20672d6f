"""The HTML of the page: one file that loads nothing from other hosts, live or with its data inside.

A policy allows scripts and styles by their hashes only, so scripts that get into the document do not run.
"""

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from longshore.page.view import JobPageView, PageModel

_STYLES: Final = ("uplot-1.6.32.min.css", "page.css")
_COMMON: Final = ("dom.js",)
_JOB_SCRIPTS: Final = (
    "uplot-1.6.32.min.js", *_COMMON, "charts.js", "timeline.js", "samples.js", "source.js", "job.js",
)  # fmt: skip
_FLEET_SCRIPTS: Final = ("uplot-1.6.32.min.js", *_COMMON, "charts.js", "fleet.js")
_ESCAPES: Final = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class Document:
    """An HTML document, and the policy under which a browser shows it."""

    html: str
    policy: str
    """For the header Content-Security-Policy."""


@cache
def live_page() -> Document:
    """Build the page of a job, which gets its data from a server."""
    return _document(_JOB_SCRIPTS, "", connects=True)


@cache
def live_fleet_page() -> Document:
    """Build the page of all jobs, which gets its data from a server."""
    return _document(_FLEET_SCRIPTS, "", connects=True)


def report(view: JobPageView) -> str:
    """Build the page of a job as a file that needs no server."""
    return _document(_JOB_SCRIPTS, _data(view), connects=False).html


def _document(scripts: tuple[str, ...], data: str, *, connects: bool) -> Document:
    style = "\n".join(_asset(name) for name in _STYLES)
    script = "\n".join(_asset(name) for name in scripts)
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "connect-src 'self'" if connects else "connect-src 'none'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
        ]
    )
    parts = {"policy": policy, "style": style, "data": data, "script": script}
    html = _asset("page.html")
    before, *rest = html.split("<!--slot:")
    pieces = [before]
    for piece in rest:
        name, _, after = piece.partition("-->")
        pieces += [parts[name], after]
    return Document("".join(pieces), f"{policy}; frame-ancestors 'none'")


def _data(view: PageModel) -> str:
    """Encode JSON so that it cannot end its HTML element."""
    return f'<script type="application/json" id="data">{view.model_dump_json().translate(_ESCAPES)}</script>'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> str:
    text = resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
    assert "</script" not in text.lower() or name == "page.html", "a script must not end its element"
    return text
