"""Downloads by the real client from a Hub on this machine: once, whole, resumed, or one sentence that says why not."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pyarrow
import pytest
from pyarrow import parquet

from longshore.api import contract
from longshore.api.hub import Hub
from longshore.api.model import Data, Model
from longshore.api.reward import RewardFunction, RewardKind
from longshore.api.spec import RLJobSpec
from longshore_runtime.errors import UserError
from longshore_runtime.hub import download
from longshore_runtime.hub.download import Downloaded, Downloads, wanted
from longshore_runtime.session.inputs import job_inputs
from longshore_runtime.storage import JobStorage
from tests.hub_server import HubServer, Repository, hub_server
from tests.unit.api.specs import spec

MODEL = "acme/tiny"
DATA = "acme/sums"
WEIGHTS = bytes(range(256)) * 4096
CARD = b"""---
configs:
- config_name: main
  data_files: [{split: train, path: main/train-*}, {split: test, path: main/test-*}]
- config_name: socratic
  data_files: [{split: train, path: socratic/train-*}]
---
# Sums
"""


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as server:
        server.models[MODEL] = Repository(
            {
                "config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": WEIGHTS, "README.md": b"# Tiny\n",
                "pytorch_model.bin": b"\0" * 100, "onnx/model.safetensors": b"\0" * 100,
            }
        )  # fmt: skip
        yield server


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("HF_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def clients() -> Callable[[], list[psutil.Process]]:
    """What asks for the processes that this test has started; others may have left some, which may have ended."""
    before = psutil.Process().children()
    return lambda: [one for one in psutil.Process().children() if one not in before]


class Job:
    """What a job asks for, and what it is answered."""

    def __init__(self, storage: Path, server: HubServer | None, name: str = "job", **fields: Any) -> None:
        self.model = Model.model_validate({"hub": MODEL, **fields})
        self.progress: list[tuple[str, int, int]] = []
        settings = Hub(endpoint=server.url if server else None)
        self.downloads = Downloads(
            storage,
            storage / name,
            settings,
            lambda *reported: self.progress.append(reported),
            retry_after_s=(0.01, 0.01),
        )

    def fetch(self) -> Downloaded:
        """Download the model."""
        return self.downloads.fetch(wanted(self.model, Data(path="a.jsonl").each)[0])


def refused(job: Job) -> str:
    """The sentence with which a download ends."""
    with pytest.raises(UserError) as caught:
        job.fetch()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_is_downloaded_once_whole_and_without_what_nobody_reads(hub: HubServer, tmp_path: Path) -> None:
    found = Job(tmp_path, hub).fetch()
    assert found.directory.is_relative_to(tmp_path)
    assert {path.name for path in found.directory.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (found.directory / "model.safetensors").read_bytes() == WEIGHTS
    assert Job(tmp_path, hub, name="other").fetch() == found
    assert len(hub.downloads("model.safetensors")) == 1


def test_a_restart_uses_the_commit_that_the_job_began_with_and_needs_no_network(hub: HubServer, tmp_path: Path) -> None:
    found = Job(tmp_path, hub).fetch()
    hub.models[MODEL].files["config.json"] = b'{"new": 1}'
    num_asked = len(hub.requests)
    assert Job(tmp_path, hub).fetch() == found
    assert len(hub.requests) == num_asked
    newer = Job(tmp_path, hub, name="later").fetch()
    assert (newer.directory / "config.json").read_bytes() == b'{"new": 1}'
    assert (found.directory / "config.json").read_bytes() == b"{}"


def test_a_commit_whose_files_are_gone_is_downloaded_again(hub: HubServer, tmp_path: Path) -> None:
    found = Job(tmp_path, hub).fetch()
    weights = found.directory / "model.safetensors"
    weights.resolve().unlink()
    assert Job(tmp_path, hub).fetch() == found
    assert weights.read_bytes() == WEIGHTS


def test_a_connection_that_breaks_is_resumed_where_it_broke(hub: HubServer, tmp_path: Path) -> None:
    content = hub.models[MODEL].files["model.safetensors"] = WEIGHTS * 24
    hub.cut_after_bytes = 15 << 20
    found = Job(tmp_path, hub).fetch()
    assert (found.directory / "model.safetensors").read_bytes() == content
    whole, rest = hub.downloads("model.safetensors")
    assert (whole.first_byte, rest.first_byte) == (0, 10 << 20), "the client writes pieces of 10 MiB"


def test_a_file_with_a_wrong_checksum_is_downloaded_once_more(hub: HubServer, tmp_path: Path) -> None:
    hub.damaged["model.safetensors"] = 1
    found = Job(tmp_path, hub).fetch()
    assert (found.directory / "model.safetensors").read_bytes() == WEIGHTS
    hub.damaged["model.safetensors"] = 9
    hub.models[MODEL].files["model.safetensors"] = WEIGHTS[::-1]
    assert refused(Job(tmp_path, hub, name="other")) == (
        f"model.hub: model.safetensors of 'acme/tiny' has another checksum than {hub.url} says; report it to the "
        "owner of that Hub"
    )


def test_jobs_that_share_a_storage_download_a_file_once_between_them(
    hub: HubServer, tmp_path: Path, clients: Callable[[], list[psutil.Process]]
) -> None:
    hub.before_file.clear()
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(Job(tmp_path, hub, name=name).fetch) for name in ("one", "other")]
        while len(clients()) < 2 or not hub.downloads("model.safetensors"):
            assert not any(one.done() for one in both)
        hub.before_file.set()
        first, second = (one.result() for one in both)
    assert first == second
    assert len(hub.downloads("model.safetensors")) == 1


def test_progress_is_reported_while_files_come(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_REPORT_INTERVAL_S", 3600.0)  # Once, however long it takes.
    hub.before_file.clear()
    job = Job(tmp_path, hub)
    reported = threading.Event()
    job.downloads._on_progress = lambda *progress: (job.progress.append(progress), reported.set())  # type: ignore[assignment]
    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(job.fetch)
        assert reported.wait(60)
        hub.before_file.set()
        fetching.result()
    assert job.progress == [(MODEL, 0, len(WEIGHTS) + 4)]


def test_a_process_that_is_interrupted_leaves_nothing_running(
    hub: HubServer, tmp_path: Path, clients: Callable[[], list[psutil.Process]]
) -> None:
    hub.before_file.clear()
    job = Job(tmp_path, hub)

    def interrupt(*_: object) -> None:
        raise InterruptedError

    job.downloads._on_progress = interrupt
    with pytest.raises(InterruptedError):
        job.fetch()
    assert clients() == []
    hub.before_file.set()
    assert Job(tmp_path, hub).fetch().directory.is_dir()


def test_the_token_comes_from_its_file_and_opens_gated_repositories(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.token, hub.models[MODEL].is_gated = "hf_s3cret", True
    url = f"accept its conditions at {hub.url}/acme/tiny"
    assert refused(Job(tmp_path, hub)) == (
        f"model.hub: 'acme/tiny' is gated; {url} and set hub.tokenSecret to a token of that account"
    )
    (tmp_path / "token").write_text("hf_other\n")
    monkeypatch.setenv(contract.ENV_HUB_TOKEN, str(tmp_path / "token"))
    assert refused(Job(tmp_path, hub)) == f"model.hub: 'acme/tiny' is gated; {url} with the account of the token"
    (tmp_path / "token").write_text("hf_s3cret\n")
    assert Job(tmp_path, hub).fetch().files
    assert {one.authorization for one in hub.requests} == {None, "Bearer hf_other", "Bearer hf_s3cret"}
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "token"]
    assert not any(b"hf_s3cret" in path.read_bytes() for path in written)
    assert "s3cret" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("fields", "reported"),
    [
        ({"hub": "acme/none"}, "model.hub: there is no model 'acme/none' at {url}, or it is private; correct the name, "
                               "or set hub.tokenSecret"),
        ({"revision": "v9"}, "model.revision: 'acme/tiny' has no 'v9'; name a branch, a tag or a commit of it"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_reported_by_its_field(
    hub: HubServer, tmp_path: Path, fields: dict[str, str], reported: str
) -> None:
    num_before = len(hub.requests)
    assert refused(Job(tmp_path, hub, **fields)) == reported.format(url=hub.url)
    assert len(hub.requests) == num_before + 1, "it is not tried again"


def test_a_model_that_has_no_room_is_refused_before_it_is_downloaded(hub: HubServer, tmp_path: Path) -> None:
    hub.claimed_bytes["model.safetensors"] = 10**17
    reported = refused(Job(tmp_path, hub))
    assert reported.startswith(
        "model.hub: the volume has no room for 'acme/tiny': it needs 100,000,000,000,000,004 bytes"
    )
    assert reported.endswith("are free; enlarge it or delete what it no longer needs")
    assert not hub.downloads("model.safetensors")


def test_what_is_in_the_way_in_the_storage_is_not_taken_for_the_network(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "cache" / "hub").mkdir(parents=True)
    (tmp_path / "cache" / "hub" / "models--acme--tiny").write_text("a file")
    reported = refused(Job(tmp_path, hub))
    assert reported.startswith("storage: cache/hub cannot be used ([Errno ")
    assert reported.endswith("; correct or delete what is there")


def test_something_else_than_a_hub_is_reported_as_such(hub: HubServer, tmp_path: Path) -> None:
    hub.status = 200
    assert refused(Job(tmp_path, hub)).startswith(f"hub.endpoint: {hub.url} cannot be reached for 'acme/tiny' (")


def test_a_hub_that_stays_ill_is_reported_after_some_attempts(hub: HubServer, tmp_path: Path) -> None:
    hub.status = 503
    reported = refused(Job(tmp_path, hub))
    assert reported.startswith(f"hub.endpoint: {hub.url} cannot be reached for 'acme/tiny' (")
    assert reported.endswith("or set HF_HUB_OFFLINE=1 there to use what the storage has")
    assert len({one.path for one in hub.requests}) == 1 < len(hub.requests)


def test_credentials_in_the_address_of_a_mirror_are_not_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with hub_server() as gone:
        gone.url = gone.url.replace("http://", "http://user:s3cret@")
    reported = refused(Job(tmp_path, gone))
    assert reported.startswith("hub.endpoint: http://127.0.0.1:")
    assert "s3cret" not in reported + "".join(capfd.readouterr())


def test_signatures_in_addresses_of_files_are_not_shown(
    hub: HubServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # huggingface_hub itself tries again after a 502, and says so, but takes a 520 for final.
    hub.cdn_statuses = {"HEAD": [502], "GET": [520] * 3}
    reported = refused(Job(tmp_path, hub))
    assert reported.startswith(
        f"hub.endpoint: {hub.url} cannot be reached for 'acme/tiny' (Server error '520 ' for url"
    )
    asked = Counter(one.method for one in hub.requests if one.path.startswith("/cdn/"))
    assert asked == {"HEAD": 4, "GET": 3}, "the library tries once more"
    hub.cut_after_bytes = len(WEIGHTS) // 2
    Job(tmp_path, hub).fetch()
    assert "s1gned" not in reported + "".join(capfd.readouterr())


def test_a_xet_storage_that_cannot_be_reached_is_tried_again(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_XET_CLIENT_RETRY_BASE_DELAY", "1ms")  # The library itself would try for a minute and a half.
    with hub_server() as gone:
        pass
    hub.xet_address = gone.url
    job = Job(tmp_path, hub)
    job.downloads._retry_after_s = (0.01,)
    reported = refused(job)
    assert reported.startswith(f"hub.endpoint: {hub.url} cannot be reached for 'acme/tiny' (Task error: ")
    assert gone.url in reported
    assert len([one for one in hub.requests if one.path == "/xet-read-token"]) >= 2, "one in each attempt"
    hub.xet_address = None
    assert (Job(tmp_path, hub).fetch().directory / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("status", [401, 403])
def test_a_xet_storage_that_refuses_is_reported_at_once_as_trouble_with_the_token(
    hub: HubServer, tmp_path: Path, status: int
) -> None:
    with hub_server() as storage:
        storage.status, hub.xet_address = status, storage.url
        reported = refused(Job(tmp_path, hub))
        assert len(storage.requests) == 1, "it is not tried again"
    assert reported.startswith(f"hub.tokenSecret: {hub.url} does not accept a request without token for 'acme/tiny' (")


def test_offline_what_the_storage_has_is_used_and_nothing_else(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Job(tmp_path, hub).fetch()
    num_asked = len(hub.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert Job(tmp_path, hub, name="other").fetch() == found
    assert refused(Job(tmp_path, hub, revision="v1")).startswith(
        "model.hub: 'acme/tiny' at revision 'v1' is not in the storage, and HF_HUB_OFFLINE is set; remove that"
    )
    assert len(hub.requests) == num_asked


def test_data_sets_of_the_hub_and_of_the_storage_are_read_together(hub: HubServer, tmp_path: Path) -> None:
    rows = b'{"question": "1?", "answer": "1"}\n{"question": "2?", "answer": "2"}\n'
    hub.datasets[DATA] = Repository({"train.jsonl": rows})
    (tmp_path / "own.jsonl").write_bytes(rows)
    sources = [{"name": "far", "hub": DATA}, {"name": "near", "path": "own.jsonl"}]
    changes = {
        "model": {"hub": MODEL, "maxContextTokens": 4096},
        "data": {"sources": sources, "promptField": "question"},
        "reward": {"functions": [{"name": "maths", "kind": "Maths"}]},
        "hub": {"endpoint": hub.url},
    }
    job = RLJobSpec.model_validate(spec(changes))
    storage = JobStorage(tmp_path, "out")
    inputs = job_inputs(job, storage, lambda *_: None)
    assert inputs.repository == MODEL
    assert inputs.model.path is not None and storage.resolve(inputs.model.path).joinpath("config.json").is_file()
    maths = [RewardFunction(name="maths", kind=RewardKind.MATHS)]
    assert [(row.source, row.data_set.name) for row in inputs.rows(maths)] == [
        ("acme/sums/train.jsonl, line 1", "far"), ("acme/sums/train.jsonl, line 2", "far"),
        ("own.jsonl, line 1", "near"), ("own.jsonl, line 2", "near"),
    ]  # fmt: skip
    again = job_inputs(job, storage, lambda *_: None)
    assert again == inputs


def table(num: int) -> bytes:
    """A Parquet file with so many rows."""
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_pylist([{"question": f"{n}?", "answer": str(n)} for n in range(num)]), sink)
    return sink.getvalue().to_pybytes()


def test_of_a_data_set_the_files_of_its_configuration_and_split_are_downloaded(hub: HubServer, tmp_path: Path) -> None:
    train, test, other = "main/train-0.parquet", "main/test-0.parquet", "socratic/train-0.parquet"
    hub.datasets[DATA] = Repository({"README.md": CARD, train: table(3), test: table(2), other: table(5)})
    job = Job(tmp_path, hub)
    (one,) = wanted(Model(path="m"), Data(hub=DATA, config="main").each)
    found = job.downloads.fetch(one)
    assert found.files == (train,)
    assert parquet.read_table(found.directory / train).num_rows == 3
    assert not hub.downloads(test) and not hub.downloads(other)
    for fields, reported in (
        ({"config": "hard"}, "data.config: 'hard' is not one of main, socratic"),
        ({}, "data.config: the data set has several: set it to one of main, socratic"),
        ({"config": "socratic", "split": "test"}, "data.split: 'test' is not one of train"),
    ):
        (one,) = wanted(Model(path="m"), Data.model_validate({"hub": DATA, **fields}).each)
        with pytest.raises(UserError) as caught:
            job.downloads.fetch(one)
        assert str(caught.value) == reported


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"---\nconfigs: [\n---\n", r"not readable \(while parsing a flow node\)"),
        (b"---\n- a list\n---\n", r"not readable \(repo card metadata block should be a dict\)"),
        (b"---\na: " + b"[" * 5000 + b"]" * 5000 + b"\n---\n", r"not readable \(maximum recursion depth exceeded.*\)"),
        (b" " * (17 << 20), "larger than 16 MiB"),
    ],
    ids=["no YAML", "a list", "deep", "large"],
)
def test_a_card_of_a_data_set_that_cannot_be_read_is_reported(
    hub: HubServer, tmp_path: Path, text: bytes, why: str
) -> None:
    hub.datasets[DATA] = Repository({"README.md": text, "train.parquet": table(1)})
    (one,) = wanted(Model(path="m"), Data(hub=DATA).each)
    reported = rf"^data.hub: the card of the data set is {why}; set revision to refs/convert/parquet, which has no card"
    with pytest.raises(UserError, match=reported):
        Job(tmp_path, hub).downloads.fetch(one)
