"""The document of the page: nothing from elsewhere, and texts of models stay texts."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from longshore.page import document
from longshore.page.build import job_head, job_view
from longshore.page.curves import curves
from longshore.page.view import JobPageView
from longshore.record.model import LaneState
from tests.page_job import HOSTILE, cluster, spec, status

RUNTIME = Path(__file__).parents[3] / "runtime" / "longshore_runtime"
WRITERS = tuple((RUNTIME / "telemetry").glob("*.py"))
"""Modules that name metrics of a step."""
OWN_SCRIPTS = ("dom.js", "charts.js", "timeline.js", "samples.js", "source.js", "job.js", "fleet.js")


class Elements(HTMLParser):
    """The elements of a document with their attributes, and the texts of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] in self.texts and self.cdata_elem is not None:
            self.texts[self.found[-1][0]].append(data)


def view() -> JobPageView:
    rows = [{"step": 1, f"reward/domain/{text}/mean": 0.5} for text in HOSTILE]
    made = job_view(job_head(spec(), HOSTILE[0], "team"), status(3), curves(rows), (), (), (), (), 1.79e9)
    return made.model_copy(update={"cluster": cluster()})


@pytest.fixture(scope="module")
def report() -> Elements:
    return Elements(document.report(view()))


def test_hostile_texts_add_no_element(report: Elements) -> None:
    plain = view().model_copy(update={"cluster": None, "runtime": None, "curves": curves([])})
    assert [tag for tag, _ in report.found] == [tag for tag, _ in Elements(document.report(plain)).found]


def test_the_data_of_a_report_is_what_was_put_in(report: Elements) -> None:
    data, _ = report.texts["script"]
    assert JobPageView.model_validate_json(data) == view()
    assert not set("<>&\u2028\u2029") & set(data)


def test_nothing_is_loaded_from_elsewhere(report: Elements) -> None:
    for _, attributes in report.found:
        assert "src" not in attributes
        assert attributes.get("href", "data:,") == "data:,"
    assert not re.search(r"url\(|@import", "".join(report.texts["style"]))
    assert "connect-src 'none'" in _policy(report)


def test_only_its_own_script_and_style_may_run(report: Elements) -> None:
    policy = _policy(report)
    for kind in ("script", "style"):
        digest = hashlib.sha256(report.texts[kind][-1].encode()).digest()
        assert f"{kind}-src 'sha256-{base64.b64encode(digest).decode()}';" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_a_live_page_asks_its_own_server_and_is_in_no_frame() -> None:
    page = document.live_page()
    assert "connect-src 'self'" in page.policy
    assert page.policy.endswith("frame-ancestors 'none'")
    assert 'id="data"' not in page.html.split("<script>")[0]


@pytest.mark.parametrize("name", OWN_SCRIPTS)
def test_scripts_never_read_a_text_as_html_or_code(name: str) -> None:
    script = resources.files("longshore.page").joinpath("assets", name).read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc", script)


def asset(name: str) -> str:
    return resources.files("longshore.page").joinpath("assets", name).read_text(encoding="utf-8")


def test_metrics_that_the_page_draws_are_written_by_the_runtime() -> None:
    """A chart of a metric that does not exist is not there, and nobody would miss it."""
    written = set(re.findall(r'"([a-z_]+/[a-z0-9_/]+)"', "".join(path.read_text() for path in WRITERS)))
    drawn = set(re.findall(r'"([a-z_]+/[a-z0-9_/]+)"', asset("job.js")))
    assert len(drawn) > 30
    assert drawn <= written


def test_every_gpu_state_has_a_place_in_the_legend_and_a_colour_in_light_and_dark() -> None:
    (states,) = re.findall(r"^const STATES = (\[.*\]);$", asset("timeline.js"), re.MULTILINE)
    assert set(json.loads(states)) == set(LaneState)
    for state in LaneState:
        colours = re.findall(rf"--{state}: (#[0-9a-f]{{6}});", asset("page.css"))
        assert len(colours) == len(set(colours)) == 2, f"{state} in light and dark"


def test_the_configuration_shows_neither_passwords_nor_variables_of_pods() -> None:
    shown = json.dumps(job_head(spec(), "demo", "team").spec)
    assert "grader.svc" in shown and "secret" not in shown
    template = {"spec": {"containers": [{"name": "longshore", "env": [{"name": "KEY", "value": "hidden"}]}]}}
    shown = str(job_head(spec(workers={"template": template}), "demo", "team").spec)
    assert "hidden" not in shown
    assert "KEY" in shown


def test_a_job_without_a_limit_of_the_mismatch_shows_none() -> None:
    assert job_head(spec(rollout={"engine": {"backend": "Fake"}}), "demo", "team").max_mismatch is None
    assert job_head(spec(rollout={"maxLogProbMismatch": 0.25}), "demo", "team").max_mismatch == 0.25


def _policy(page: Elements) -> str:
    return next(
        attributes["content"] or "" for tag, attributes in page.found if tag == "meta" and "http-equiv" in attributes
    )
