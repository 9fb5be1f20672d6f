"""The page of a job, read from its storage and served beside the coordinator's metrics."""

import io
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp.test_utils import TestClient, TestServer

from longshore.api.runtime_status import RuntimeStatus
from longshore.page.build import job_head
from longshore.page.view import JobPageView, RoundView, SampleGroup
from longshore_runtime.page.files import JobFiles, SampleKind, sample_file
from longshore_runtime.page.report import ReportRequest, chosen_steps, report_view, run_report
from longshore_runtime.page.server import JobPage, LatestStatus, page_hosts
from longshore_runtime.process.logs import configure_logging
from longshore_runtime.telemetry import samples
from tests.page_job import HOSTILE, cluster, spec, status, write_job, write_step

TRAINING, HELD_OUT = SampleKind.TRAINING, SampleKind.HELD_OUT


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a job of twelve steps has written; tests do not change it."""
    directory = tmp_path_factory.mktemp("job")
    write_job(directory, num_steps=12)
    return directory


def page(output: Path, **options: Any) -> JobPage:
    return JobPage(job_head(spec(), "demo", "team"), JobFiles(output), lambda: status(12), **options)


def write_step_into(output: Path, step: int) -> None:
    write_job(output, 0)
    write_step(output, step, random.Random(step))


@pytest.fixture
async def client(output: Path) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(page(output).application())) as client:
        yield client


class TestFiles:
    def test_everything_that_was_written_is_found(self, output: Path) -> None:
        files = JobFiles(output)
        assert files.round_steps() == files.sample_steps(TRAINING) == list(range(1, 13))
        assert [digest.step for digest in files.digests()[0]] == list(range(1, 13))
        assert files.curves().steps == tuple(range(1, 13))
        assert files.round(3).step == 3

    def test_the_samples_are_those_that_the_recorder_writes(self) -> None:
        assert (samples.DIRECTORY, samples.HELD_OUT_DIRECTORY) == (TRAINING, HELD_OUT)
        assert f"{samples.PREFIX}000012{samples.SUFFIX}" == sample_file(12)

    def test_held_out_prompts_are_apart_from_those_of_the_training(self, output: Path) -> None:
        files = JobFiles(output)
        assert files.sample_steps(HELD_OUT) == [0, 10]
        heads = files.heads(HELD_OUT, 10)
        assert {head.outcome for head in heads} == {"evaluated"}
        (group,) = files.groups(HELD_OUT, 10, heads[0].draw)
        assert all(response.advantage is None for response in group.responses)

    def test_a_job_that_has_written_nothing_has_an_empty_page(self, tmp_path: Path) -> None:
        files = JobFiles(tmp_path / "none")
        assert files.round_steps() == files.sample_steps(TRAINING) == []
        assert (files.curves().steps, files.digests()) == ((), ([], True))

    def test_what_is_being_written_is_not_read(self, tmp_path: Path) -> None:
        write_job(tmp_path, num_steps=1)
        (tmp_path / "samples" / ".step-000002.parquet").write_bytes(b"half")
        (tmp_path / "rounds" / ".round-000002.json.gz").write_bytes(b"half")
        with (tmp_path / "metrics.jsonl").open("ab") as file:
            file.write(b'{"step": 2, "critic/rew')
        files = JobFiles(tmp_path)
        assert files.round_steps() == files.sample_steps(TRAINING) == [1]
        assert files.curves().steps == (1,)
        with (tmp_path / "metrics.jsonl").open("ab") as file:
            file.write(b'ard": 1.0}\n')
        assert files.curves().steps == (1, 2), "the rest of the line has come"

    def test_a_step_that_was_done_again_shows_its_new_round(self, tmp_path: Path) -> None:
        write_job(tmp_path, num_steps=3)
        files = JobFiles(tmp_path)
        *others, before = files.digests()[0]
        write_step(tmp_path, 3, random.Random(99))
        *same, after = files.digests()[0]
        assert after != before
        assert same == others

    def test_of_many_rounds_the_newest_are_read_first(self, output: Path) -> None:
        files = JobFiles(output)
        read = [
            [digest.step for digest in found] + [are_all] for found, are_all in (files.digests(5) for _ in range(4))
        ]
        assert read == [
            [8, 9, 10, 11, 12, False],
            [*range(3, 13), False],
            [*range(1, 13), True],
            [*range(1, 13), True],
        ]

    def test_a_damaged_record_hides_no_other(self, tmp_path: Path) -> None:
        write_job(tmp_path, num_steps=3)
        damaged = tmp_path / "rounds" / "round-000002.json.gz"
        damaged.write_bytes(damaged.read_bytes()[:100])
        files = JobFiles(tmp_path)
        assert [digest.step for digest in files.digests()[0]] == [1, 3]
        assert report_view(_request(), files, 1.79e9).round_steps == (1, 3)

    def test_a_damaged_line_of_metrics_hides_no_other(self, tmp_path: Path) -> None:
        (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\0\0\0\n{"loss": 1}\n[2]\n{"step": 3}\n')
        assert JobFiles(tmp_path).curves().steps == (1, 3)

    def test_curves_follow_the_file(self, tmp_path: Path) -> None:
        files = JobFiles(tmp_path)
        assert files.curves().steps == ()
        for num_steps in (1, 2):
            write_step_into(tmp_path, num_steps)
            assert files.curves().steps == tuple(range(1, num_steps + 1))
            assert files.curves() is files.curves(), "what has not changed is not read again"

    def test_curves_of_a_run_that_went_back_are_those_of_the_new_lines(self, tmp_path: Path) -> None:
        metrics, files = tmp_path / "metrics.jsonl", JobFiles(tmp_path)
        metrics.write_bytes(b'{"step": 1, "a": 1.0}\n{"step": 2, "a": 2.0}\n')
        assert files.curves().values == {"a": (1.0, 2.0)}
        metrics.write_bytes(b'{"step": 1, "a": 1.0}\n{"step": 2, "a": 3.0}\n{"step": 3, "a": 4.0}\n')
        assert files.curves().values == {"a": (1.0, 3.0, 4.0)}


class TestAnswers:
    async def test_the_page_comes_with_its_policy(self, client: TestClient[Any, Any]) -> None:
        answer = await client.get("/")
        assert answer.status == 200
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert (await answer.text()).startswith("<!doctype html>")

    async def test_a_view_has_everything_at_once(self, client: TestClient[Any, Any]) -> None:
        view = JobPageView.model_validate(await (await client.get("/api/view")).json())
        assert view.runtime == status(12)
        assert view.curves.steps == tuple(range(1, 13))
        assert [digest.step for digest in view.digests] == list(range(3, 13)), "ten at once"
        assert view.sample_steps == tuple(range(1, 13))
        assert view.held_out_steps == (0, 10)

    async def test_a_view_is_sent_again_only_until_all_rounds_were_read(self, client: TestClient[Any, Any]) -> None:
        first = await client.get("/api/view")
        second = await client.get("/api/view", headers={"If-None-Match": first.headers["ETag"]})
        view = JobPageView.model_validate(await second.json())
        assert [digest.step for digest in view.digests] == list(range(1, 13))
        third = await client.get("/api/view", headers={"If-None-Match": second.headers["ETag"]})
        assert (third.status, await third.read()) == (304, b"")

    async def test_a_new_step_or_status_is_a_new_view(self, tmp_path: Path) -> None:
        write_job(tmp_path, num_steps=1)
        reported = [status(1)]
        changing = JobPage(job_head(spec(), "demo", "team"), JobFiles(tmp_path), lambda: reported[-1])
        async with TestClient(TestServer(changing.application())) as client:
            tags = [(await client.get("/api/view")).headers["ETag"]]
            write_step(tmp_path, 2, random.Random(2))
            tags.append((await client.get("/api/view")).headers["ETag"])
            reported.append(status(2))
            tags.append((await client.get("/api/view")).headers["ETag"])
        assert len(set(tags)) == 3

    async def test_rounds_and_samples_are_read_one_by_one(self, client: TestClient[Any, Any]) -> None:
        assert RoundView.model_validate(await (await client.get("/api/rounds/5")).json()).step == 5
        heads = await (await client.get("/api/samples/5")).json()
        group = SampleGroup.model_validate(await (await client.get(f"/api/samples/5/{heads[0]['draw']}")).json())
        assert any(text in group.responses[0].text for text in HOSTILE)

    @pytest.mark.parametrize(
        "path", ["/api/rounds/999", "/api/samples/999", "/api/samples/999/0-1", "/api/samples/5/9-9", "/api/rounds/x",
                 "/api/samples/5/..%2F..%2Fmetrics.jsonl", "/metrics.jsonl"],
    )  # fmt: skip
    async def test_a_step_or_draw_that_is_not_stored_is_not_found(
        self, client: TestClient[Any, Any], path: str
    ) -> None:
        assert (await client.get(path)).status == 404

    async def test_a_damaged_file_is_no_answer_and_no_silence(self, tmp_path: Path) -> None:
        write_job(tmp_path, num_steps=1)
        (tmp_path / "rounds" / "round-000001.json.gz").write_bytes(b"damaged")
        (tmp_path / "samples" / "step-000001.parquet").write_bytes(b"damaged")
        async with TestClient(TestServer(page(tmp_path).application())) as client:
            assert (await client.get("/api/view")).status == 200
            for path in ("/api/rounds/1", "/api/samples/1"):
                answer = await client.get(path)
                assert (answer.status, await answer.text()) == (500, "What is kept of this step cannot be read.")

    @pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
    async def test_nothing_can_be_changed(self, client: TestClient[Any, Any], method: str) -> None:
        assert (await client.request(method, "/api/view")).status == 405

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:8088", "127.0.0.1.evil.example", "localhost.evil:1"]
    )
    async def test_a_site_whose_name_leads_here_reads_nothing(self, client: TestClient[Any, Any], host: str) -> None:
        assert (await client.get("/api/view", headers={"Host": host})).status == 403

    @pytest.mark.parametrize("host", ["localhost", "localhost:1234", "127.0.0.1:8088", "[::1]:8088", "10.1.2.3"])
    async def test_addresses_and_localhost_are_answered(self, client: TestClient[Any, Any], host: str) -> None:
        assert (await client.get("/api/view", headers={"Host": host})).status == 200

    async def test_behind_a_proxy_of_the_installation_any_name_is_answered(self, output: Path) -> None:
        async with TestClient(TestServer(page(output, any_host=True).application())) as client:
            assert (await client.get("/api/view", headers={"Host": "portal.example"})).status == 200


@pytest.mark.parametrize(
    ("address", "is_open", "hosts"),
    [
        ("10.1.2.3", False, ["127.0.0.1"]),
        ("10.1.2.3", True, ["127.0.0.1", "10.1.2.3"]),
        ("127.0.0.9", False, ["127.0.0.9"]),
        ("fd00::7", False, ["127.0.0.1"]),
    ],
)
def test_without_a_word_of_the_installation_only_port_forward_arrives(
    address: str, is_open: bool, hosts: list[str]
) -> None:
    assert page_hosts(address, is_open=is_open) == hosts


def test_the_page_shows_the_newest_report_and_passes_it_on() -> None:
    passed: list[RuntimeStatus] = []

    class Sink:
        def report(self, status: RuntimeStatus) -> None:
            passed.append(status)

        def close(self) -> None:
            """Nothing to close."""

    latest = LatestStatus(Sink())
    assert latest.status is None
    latest.report(status(1))
    latest.report(status(2))
    assert latest.status == status(2)
    assert passed == [status(1), status(2)]


class TestReport:
    def test_a_report_holds_rounds_and_samples(self, output: Path) -> None:
        view = report_view(_request(), JobFiles(output), 1.79e9)
        assert view.round_steps == tuple(view.rounds) == tuple(range(1, 13))
        assert view.sample_steps == tuple(view.samples) == (1, 6, 7, 8, 9, 10, 11, 12)
        assert view.held_out_steps == tuple(view.held_out) == (0, 10)
        assert all(group.responses for groups in view.samples.values() for group in groups)
        assert view.cluster == cluster(is_finished=True)

    @pytest.mark.parametrize(
        ("steps", "chosen"),
        [([], []), ([4], [4]), ([1, 2], [1, 2]), (list(range(1, 30)), [1, 23, 24, 25, 26, 27, 28, 29])],
    )
    def test_its_samples_are_of_the_newest_steps_and_the_first(self, steps: list[int], chosen: list[int]) -> None:
        assert chosen_steps(steps, 8) == chosen

    def test_the_file_and_nothing_else_goes_to_the_standard_output(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_job(tmp_path / "output", num_steps=2)
        (tmp_path / "output" / "rounds" / "round-000001.json.gz").write_bytes(b"damaged")
        monkeypatch.setattr(sys, "stdin", io.StringIO(_request().model_dump_json() + "\n"))
        configure_logging()
        try:
            assert run_report(str(tmp_path), "output") == 0
        finally:
            structlog.reset_defaults()
        printed = capsys.readouterr()
        assert printed.out.startswith("<!doctype html>") and printed.out.endswith("</html>\n")
        assert "a round cannot be shown" in printed.err

    @pytest.mark.parametrize(
        ("output", "line", "sentence"),
        [
            ("none", "{}", "the job has written nothing yet"),
            ("../other", "{}", "the job has written nothing yet"),
            ("output", '{"name": "demo"}', "this image cannot read the job"),
        ],
    )
    def test_what_cannot_be_reported_is_one_sentence(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        output: str,
        line: str,
        sentence: str,
    ) -> None:
        (tmp_path / "storage" / "output").mkdir(parents=True)
        (tmp_path / "other").mkdir()
        monkeypatch.setattr(sys, "stdin", io.StringIO(line))
        assert run_report(str(tmp_path / "storage"), output) == 1
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert sentence in printed.err


def _request() -> ReportRequest:
    return ReportRequest(
        name="demo", namespace="team", spec=spec(), runtime=status(12), cluster=cluster(is_finished=True)
    )
