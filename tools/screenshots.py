"""Take the pictures of the pages: `python -m tools.screenshots REPORT.html`.

Those of the page of a job come from a report of a real one, that of the page of all jobs from jobs that are made up.
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

from aiohttp.test_utils import TestServer
from tests.browser import Browser, browser
from tests.page_job import fleet

from longshore_cli.page.server import Fleet, JobSource, LocalPage

_ASSETS: Final = Path(__file__).parents[1] / "docs" / "assets"
_DESK: Final = (1280, 860)
_PHONE: Final = (390, 844)
_SHOWS_EVERYTHING: Final = "document.querySelector('.response pre') && document.querySelectorAll('.uplot').length > 5"
_OLDER_ROUND: Final = "document.querySelector('button[aria-label=\"Older round\"]').click()"
"""Script that opens an older round.

The last round of tail batching is a long one; the one before it also aborts and defers.
"""
_SCROLLS: Final = """(() => {
  document.documentElement.style.scrollBehavior = 'auto';
  const part = document.getElementById('PART');
  scrollTo(0, part ? part.offsetTop - 50 : 0);
})()"""


async def take(page: Browser, report: str, part: str, size: tuple[int, int], *, is_dark: bool) -> bytes:
    """Take a picture of the page, scrolled to a part of it."""
    await page.resize(*size, is_dark=is_dark, is_phone=size == _PHONE)
    await page.open(report)
    await page.until(_SHOWS_EVERYTHING)
    await page.evaluate(_OLDER_ROUND)
    await page.evaluate(_SCROLLS.replace("PART", part))
    await page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return await page.screenshot()


async def all_jobs(page: Browser) -> bytes:
    """Take a picture of the page of all jobs; none of their pages is opened."""

    def source(namespace: str, job: str) -> JobSource:
        raise AssertionError(f"{namespace}/{job} is opened")

    async with TestServer(LocalPage(Fleet(fleet, source)).application()) as server:
        await page.resize(*_DESK, is_dark=False)
        await page.open(str(server.make_url("/")))
        await page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return await page.screenshot()


async def pictures(page: Browser, report: str) -> dict[str, bytes]:
    """Take all pictures, by the name of their file; `report`: its address."""
    return {
        "page-jobs.png": await all_jobs(page),
        "page-overview.png": await take(page, report, "top", _DESK, is_dark=False),
        "page-timeline.png": await take(page, report, "timeline", _DESK, is_dark=False),
        "page-samples.png": await take(page, report, "samples", _DESK, is_dark=True),
        "page-phone.png": await take(page, report, "timeline", _PHONE, is_dark=True),
    }


async def _all_pictures(report: str) -> dict[str, bytes]:
    async with browser() as page:
        return await pictures(page, report)


def main(report: Path) -> None:
    """Take all pictures, those of the page of a job from its report."""
    for name, picture in asyncio.run(_all_pictures(report.absolute().as_uri())).items():
        (_ASSETS / name).write_bytes(picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
