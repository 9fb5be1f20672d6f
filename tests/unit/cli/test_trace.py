"""`longshore trace`: which rounds are meant, and what is written of them."""

import gzip
import json
from pathlib import Path

import pytest

from longshore.record.build import round_record
from longshore.record.model import RoundRecord, file_name
from longshore_cli import records, trace
from longshore_cli.errors import CliError
from longshore_cli.records import Rounds
from tests.unit.record.facts import TAIL_BATCHING, played

RECORDS = [round_record(one.facts) for one in played(TAIL_BATCHING, 3, num_rounds=3)]


@pytest.mark.parametrize(
    ("text", "rounds"),
    [("3:7", Rounds(3, 7)), ("3:", Rounds(3)), (":7", Rounds(None, 7)), ("3", Rounds(3, 3)), ("3:3", Rounds(3, 3))],
)
def test_a_range_of_rounds(text: str, rounds: Rounds) -> None:
    assert Rounds.parse(text) == rounds


@pytest.mark.parametrize("text", ["", ":", "a:b", "-1", "1:2:3", "1.5", "²", "7:3", "9999999999"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(CliError, match=r"^--rounds: "):
        Rounds.parse(text)


def test_a_range_becomes_names_of_files() -> None:
    assert Rounds(3, 12).choice("rounds/") == {
        "match": "rounds/round-*.json.gz",
        "first": "rounds/round-000003.json.gz",
        "last": "rounds/round-000012.json.gz",
    }
    assert Rounds(newest=10).choice() == {"match": "round-*.json.gz", "newest": 10}


def stored(directory: Path, found: list[RoundRecord]) -> Path:
    directory.mkdir()
    for record in found:
        (directory / file_name(record.step)).write_bytes(record.to_bytes())
    return directory


def test_records_are_read_in_their_order_and_other_files_are_left_alone(tmp_path: Path) -> None:
    directory = stored(tmp_path / "rounds", RECORDS[::-1])
    (directory / "notes.txt").write_text("mine")
    assert records.read(directory) == RECORDS
    assert records.read(tmp_path / "nowhere") == []


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    directory = stored(tmp_path / "rounds", RECORDS)
    (directory / file_name(2)).write_bytes(b"half")
    with pytest.raises(CliError, match=r"^round-000002.json.gz: it is no record of a round"):
        records.read(directory)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_file_is_json_that_perfetto_opens(tmp_path: Path, name: str) -> None:
    made = trace.write("demo", RECORDS, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    found = json.loads(gzip.decompress(content) if name.endswith(".gz") else content)
    assert found["traceEvents"] == json.loads(json.dumps(made.events))
    assert found["otherData"] == {"job": "demo"}
    (line,) = trace.summary(RECORDS, made, tmp_path / name)
    assert line.startswith(f"The trace of rounds 1 to 3 is in {tmp_path / name}. Open it at https://ui.perfetto.dev")


def test_gaps_and_what_is_left_out_are_reported(tmp_path: Path) -> None:
    found = [RECORDS[0], RECORDS[2]]
    made = trace.PerfettoTrace((), without_responses=(1,))
    assert trace.summary(found, made, tmp_path)[1:] == [
        "1 round between them were not recorded.",
        "Responses of 1 round are left out, so that it can be opened: ask for fewer with --rounds.",
    ]


def test_a_target_that_cannot_be_written_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "there.json").touch()
    for path, message in (
        (tmp_path / "a.txt", "ends neither in"),
        (tmp_path / "no" / "a.json", "no directory"),
        (tmp_path / "there.json", "exists already"),
    ):
        with pytest.raises(CliError, match=message):
            trace.check_target(path, force=False)
    trace.check_target(tmp_path / "there.json", force=True)
