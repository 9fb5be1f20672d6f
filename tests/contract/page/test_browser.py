"""The page of a job in a real browser: live and as a report, on a desk and on a phone, in light and dark."""

import random
import re
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestServer

from longshore.api.runtime_status import Progress, ProgressUnit, RuntimeActivity
from longshore.page import document
from longshore.page.build import job_head
from longshore.page.fleet import FleetView
from longshore_cli.page.fleet import extended, fleet_jobs
from longshore_cli.page.server import Fleet, JobSource, LocalPage
from longshore_runtime.page.files import JobFiles
from longshore_runtime.page.report import ReportRequest, report_view
from longshore_runtime.page.server import JobPage, page_server
from tests.browser import Browser, Chromium, chromium, needs_browser
from tests.page_job import HOSTILE, cluster, spec, status, write_conversations, write_job, write_step
from tests.unit.cli.samples import at_step, condition, rljob
from tests.unit.cli.test_page import Tunnel, source

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module")]

NUM_STEPS = 12
ENDED = ReportRequest(
    name="demo", namespace="team", spec=spec(), runtime=status(NUM_STEPS), cluster=cluster(is_finished=True)
)
HAS_SAMPLES = "document.querySelector('.response pre') !== null"
COLOURS = """(() => {
  const canvas = document.querySelector('canvas.timeline');
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const found = new Set();
  for (let at = 0; at < pixels.length; at += 4) {
    if (pixels[at + 3] === 255) found.add(pixels[at] * 65536 + pixels[at + 1] * 256 + pixels[at + 2]);
  }
  const style = getComputedStyle(document.documentElement);
  const hex = (name) => parseInt(style.getPropertyValue('--' + name).trim().slice(1), 16);
  return ['sampling', 'training', 'publishing', 'accepted', 'deferred', 'moved'].filter((name) => found.has(hex(name)));
})()"""
"""Colours of the timeline that are on its canvas."""
CHARTS = """[...document.querySelectorAll('figure')].filter((one) => one.offsetParent && one.querySelector('.uplot'))
  .map((one) => one.querySelector('h3').textContent)"""
UNNAMED = """(() => {
  const all = document.querySelectorAll('button, select, canvas, [role=region], progress, figure');
  return [...all]
  .filter((one) => one.offsetParent !== null && !(one.getAttribute('aria-label') || one.textContent.trim()))
  .map((one) => one.outerHTML);
})()"""
"""What a screen reader could not name."""
CUT_OFF = """[...document.querySelectorAll('td, a')]
  .filter((one) => one.getBoundingClientRect().right > innerWidth).map((one) => one.textContent)"""
"""Cells and links that a phone does not show without scrolling."""
GRAPHICS = """[...document.querySelectorAll('figure canvas[role=img]')].map((one) => one.getAttribute('aria-label'))"""
REPORT = b'<!doctype html><link rel="icon" href="data:,"><title>The report</title>'
"""Without an icon, a browser may ask the server for one."""
CONTRAST = """(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((one) => Number(one) / 255);
  const light = (colour) => rgb(colour).map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
    .reduce((sum, one, place) => sum + one * [0.2126, 0.7152, 0.0722][place], 0);
  return [...document.querySelectorAll('.badge')].map((one) => {
    const style = getComputedStyle(one), both = [light(style.color), light(style.backgroundColor)];
    const [low, high] = both.sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  });
})()"""
"""Contrast of each badge, as WCAG defines it."""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("job")
    write_job(directory, NUM_STEPS)
    return directory


@pytest.fixture(scope="module")
def report(output: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(document.report(report_view(ENDED, JobFiles(output), 1.79e9)), encoding="utf-8")
    return path.as_uri()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Chromium]:
    async with chromium() as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def page(shared: Chromium) -> AsyncIterator[Browser]:
    async with shared.page() as page:
        yield page
        assert page.complaints == []


async def test_a_report_shows_everything_without_asking_anybody(page: Browser, report: str) -> None:
    await page.open(report)
    await page.until(HAS_SAMPLES)
    assert {address.split(":")[0] for address in page.requests} <= {"file", "data"}
    text = await page.evaluate("document.body.innerText")
    for shown in ("demo", "Succeeded", f"Step {NUM_STEPS} of 60", "EngineLost", "grader.svc", "mismatch", "deferred"):
        assert shown in text
    assert await page.evaluate(COLOURS) == ["sampling", "training", "publishing", "accepted", "deferred", "moved"]
    script = resources.files("longshore.page").joinpath("assets", "job.js").read_text()
    charts = re.findall(r'new Chart\("([^"]+)"', script)
    assert {"Reward by function", "Reward by domain", "Scoring time per response, seconds"} < set(charts)
    assert sorted(await page.evaluate(CHARTS)) == sorted(charts), "every chart has something to show"
    sample = await page.evaluate("document.querySelector('details.response').innerText")
    for shown in ("reward 1", "advantage 0.5", "120 tokens", "ended by itself", "maths 1", "version 11: 120"):
        assert shown in sample
    assert await page.evaluate(UNNAMED) == []
    assert min(await page.evaluate(CONTRAST)) >= 4.5
    graphics = await page.evaluate(GRAPHICS)
    assert len(graphics) == len(charts)
    assert any(re.fullmatch(r"Reward: mean 0\.\d+ at step 12; .*", name) for name in graphics)
    legend = await page.evaluate("document.querySelector('.u-legend').innerText")
    assert re.match(r"step:?\s*12\s*mean:?\s*0\.\d+", legend), "the last values, while nothing is pointed at"


async def test_what_models_wrote_stays_text(page: Browser, report: str) -> None:
    """Every prompt and response is opened; a script of any of them would leave a mark, a complaint or an element."""
    await page.open(report)
    await page.until(HAS_SAMPLES)
    foreign = "document.querySelectorAll('#page :is(script, img, svg, iframe, a:not(nav a))').length"
    for number in range(len(HOSTILE)):
        await page.evaluate(f"document.querySelectorAll('.groups button')[{number}].click()")
        await page.evaluate("document.querySelectorAll('details.response').forEach(one => one.open = true)")
        shown = await page.evaluate(
            "[...document.querySelectorAll('.response pre')].map(one => one.textContent).join()"
        )
        assert "hacked" in shown
    assert await page.evaluate("window.hacked") is None
    assert await page.evaluate(foreign) == 0


@pytest.mark.parametrize("is_dark", [False, True])
async def test_a_phone_scrolls_in_one_direction_only(page: Browser, report: str, is_dark: bool) -> None:
    await page.resize(390, 844, is_dark=is_dark, is_phone=True)
    await page.open(report)
    await page.until(HAS_SAMPLES)
    assert await page.evaluate("document.documentElement.scrollWidth") == 390
    dark, light = "rgb(18, 22, 28)", "rgb(246, 247, 249)"
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == (dark if is_dark else light)
    before = await page.evaluate("document.querySelector('canvas.timeline').toDataURL()")
    await page.resize(390, 844, is_dark=not is_dark, is_phone=True)
    await page.until(f"document.querySelector('canvas.timeline').toDataURL() !== {before!r}")


async def test_a_live_page_follows_the_job_and_says_when_it_cannot(page: Browser, tmp_path: Path) -> None:
    write_job(tmp_path, 2)
    reported = [status(2)]
    job = JobPage(job_head(spec(), "demo", "team"), JobFiles(tmp_path), lambda: reported[-1])
    with page_server(job, ["127.0.0.1"], port=0) as served:
        await page.open(f"http://127.0.0.1:{served.port}/")
        await page.until(HAS_SAMPLES)
        assert "Step 2 of 60" in await page.evaluate("document.body.innerText")
        assert "longshore ui" in await page.evaluate("document.querySelector('#events').innerText")
        write_step(tmp_path, 3, random.Random(3))
        reported.append(status(3))
        await page.until("document.body.innerText.includes('Step 3 of 60')")
        assert await page.evaluate("document.querySelector('select[aria-label=Round]').value") == "3"
        await page.evaluate("document.querySelector('button[aria-label=\"Older round\"]').click()")
        await page.until("document.querySelector('canvas.timeline').getAttribute('aria-label').includes('round 2')")
        assert await page.evaluate(COLOURS) == ["sampling", "training", "publishing", "accepted", "deferred", "moved"]
        assert page.complaints == []
    await page.until("document.body.innerText.includes('no connection')")
    assert all("Failed to load resource" in complaint for complaint in page.complaints)
    page.complaints.clear()


async def test_what_could_not_be_read_once_is_asked_for_again(page: Browser, tmp_path: Path) -> None:
    write_job(tmp_path, 3)
    reported = [status(3)]
    job = JobPage(job_head(spec(), "demo", "team"), JobFiles(tmp_path), lambda: reported[-1])
    with page_server(job, ["127.0.0.1"], port=0) as served:
        await page.open(f"http://127.0.0.1:{served.port}/")
        await page.until(HAS_SAMPLES)
        await page.evaluate("""(() => {
          const real = window.fetch;
          window.fetch = (path, options) => {
            if (!path.includes('rounds/2')) return real(path, options);
            window.fetch = real;
            return Promise.reject(new Error('cut off'));
          };
          document.querySelector('button[aria-label="Older round"]').click();
        })()""")
        await page.until("document.body.innerText.includes('cut off')")
        reported.append(status(3).model_copy(update={"reward": 0.7}))
        await page.until("document.querySelector('canvas.timeline').getAttribute('aria-label').includes('round 2')")


async def test_a_step_for_deferred_prompts_and_the_progress_of_an_activity_are_shown(
    page: Browser, tmp_path: Path
) -> None:
    progress = Progress(unit=ProgressUnit.STEPS, done=75, total=300, detail="warm start")
    spent = {RuntimeActivity.ROLLOUT: 30.0, RuntimeActivity.TRAIN: 9.0, RuntimeActivity.EVALUATE: 1.0}
    reported = status(61).model_copy(
        update={"activity": RuntimeActivity.PREPARE_MODEL, "progress": progress, "activity_s": spent}
    )
    job = JobPage(job_head(spec(), "demo", "team"), JobFiles(tmp_path), lambda: reported)
    with page_server(job, ["127.0.0.1"], port=0) as served:
        await page.open(f"http://127.0.0.1:{served.port}/")
        text = await page.evaluate("document.body.innerText")
        assert "Step 60 of 60 + 1 for deferred prompts · now: model and warm start" in text
        assert "75 of 300 steps · warm start" in text
        assert "75% · 23%\nshare of time, rollout · training" in text
        share = "(one => one.value / one.max)(document.querySelector('progress[aria-label=\"Model and warm start\"]'))"
        assert await page.evaluate(share) == 0.25


async def test_a_response_in_the_timeline_shows_its_reward_and_text(page: Browser, report: str) -> None:
    await page.open(report)
    await page.until(HAS_SAMPLES)
    await page.evaluate("""(() => {
      const canvas = document.querySelector('canvas.timeline'), area = canvas.getBoundingClientRect();
      for (let y = 20; y < area.height; y += 2) {
        for (let x = 2; x < area.width; x += 6) {
          canvas.dispatchEvent(new PointerEvent('pointermove', { clientX: area.left + x, clientY: area.top + y }));
          if (/accepted, reward 1$/.test(document.querySelector('.hint span').textContent)) return;
        }
      }
    })()""")
    await page.until("document.querySelector('.hint q').textContent.includes('hacked')")
    hint = await page.evaluate("document.querySelector('.hint span').textContent")
    assert re.match(r"Response \d+-\d+-\d+ on worker ", hint)


async def test_a_page_without_its_job_says_so_at_the_top_and_shows_no_empty_parts(page: Browser) -> None:
    async with TestServer(LocalPage(source(Tunnel(None))).application()) as server:
        await page.open(str(server.make_url("/")))
        text = await page.evaluate("document.body.innerText")
        assert "The coordinator of the job cannot be reached." in text[:200]
        assert "not found" in text[:300], "in the words of kubectl"
        assert await page.evaluate("document.documentElement.scrollHeight") < 1000
        assert await page.evaluate("[...document.querySelectorAll('h2')].filter(one => one.offsetParent).length") == 1
    assert all("Failed to load resource" in complaint for complaint in page.complaints)
    page.complaints.clear()


async def test_a_page_whose_job_ended_says_at_the_top_where_its_report_is(page: Browser, tmp_path: Path) -> None:
    write_job(tmp_path, 2)
    job = JobPage(job_head(spec(), "demo", "team"), JobFiles(tmp_path), lambda: status(2))
    is_finished: list[bool] = []
    with page_server(job, ["127.0.0.1"], port=0) as served:
        tunnel = Tunnel(served.port)
        of_job = JobSource(lambda: cluster(is_finished=bool(is_finished)), tunnel, lambda: REPORT)
        async with TestServer(LocalPage(of_job).application()) as server:
            await page.open(str(server.make_url("/")))
            await page.until(HAS_SAMPLES)
            assert "There is no data about this yet." not in await page.evaluate(
                "document.querySelector('#learning').innerText"
            )
            is_finished.append(True)
            tunnel.number = None
            await page.until("document.querySelector('.trouble').innerText.includes('Reload this page')")
            await page.call("Page.reload")
            await page.until("document.title === 'The report'")
    assert all("Failed to load resource" in complaint for complaint in page.complaints)
    page.complaints.clear()


async def test_conversations_of_an_episode_are_shown_one_after_the_other(page: Browser, tmp_path: Path) -> None:
    write_job(tmp_path, 2)
    write_conversations(tmp_path, 2)
    path = tmp_path / "report.html"
    path.write_text(document.report(report_view(ENDED, JobFiles(tmp_path), 1.79e9)), encoding="utf-8")
    await page.open(path.as_uri())
    await page.until(HAS_SAMPLES)
    text = await page.evaluate("document.querySelector('#samples').innerText")
    places = [text.index(one) for one in ("Conversation 1", "You plan.", "look", "Conversation 2", "It is right.")]
    assert places == sorted(places)


async def test_answers_to_held_out_prompts_are_apart_from_those_of_the_training(page: Browser, report: str) -> None:
    await page.open(report)
    await page.until(HAS_SAMPLES)
    assert "advantage" in await page.evaluate("document.querySelector('#samples').innerText")
    await page.evaluate("""(() => {
      const kind = document.querySelector('select[aria-label="Samples of"]');
      kind.value = 'held-out';
      kind.dispatchEvent(new Event('change'));
    })()""")
    await page.until("document.querySelector('.groups').innerText.includes('evaluated')")
    await page.until("!document.querySelector('#samples').innerText.includes('advantage')")
    steps = "[...document.querySelector('select[aria-label=Step]').options].map(one => one.value)"
    assert await page.evaluate(steps) == ["10", "0"]


async def test_the_page_of_all_jobs_shows_who_waits_for_what(page: Browser) -> None:
    jobs = fleet_jobs(
        [
            rljob(at_step(4), gpus={"rollout": 4}),
            rljob(phase="Queued", conditions=(condition("Admitted", "False", "WaitsForGPUs", HOSTILE[1]),)),
            rljob(phase="Failed", conditions=(condition("Failed", "True", "UserError", "no such file"),)),
        ]
    )
    moments = extended(extended((), 1.79e9, jobs), 1.79e9 + 60, jobs)
    fleet = FleetView(written_s=1.79e9 + 60, namespace="team", jobs=jobs, history=moments)
    ended = source(Tunnel(None), is_finished=True, reports=[REPORT])
    async with TestServer(LocalPage(Fleet(lambda: fleet, lambda namespace, name: ended)).application()) as server:
        await page.resize(390, 844, is_dark=True, is_phone=True)
        await page.open(str(server.make_url("/")))
        text = await page.evaluate("document.body.innerText")
        for shown in (
            "demo",
            "Queued",
            "WaitsForGPUs",
            HOSTILE[1],
            "UserError: no such file",
            "4 rollout",
            "namespace team",
        ):
            assert shown in text
        assert await page.evaluate("document.documentElement.scrollWidth") == 390
        assert await page.evaluate("document.querySelectorAll('.uplot').length") == 1
        assert await page.evaluate(CUT_OFF) == []
        assert await page.evaluate("window.hacked") is None
        await page.evaluate("document.querySelector('td a').click()")
        await page.until("document.title === 'The report'")
