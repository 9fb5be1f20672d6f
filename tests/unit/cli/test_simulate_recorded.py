"""`longshore simulate --from`: lengths, profile and spec of a job that ran."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from longshore.record.lengths import RecordedLengths
from longshore.rounds.messages import EpisodeLength
from longshore_cli.errors import CliError
from longshore_cli.simulate.inputs import RecordedJob, SimulateOptions, read
from longshore_cli.simulate.notes import notes
from tests.unit.cli.simulated import TOOLS, manifest, refusal

Json = dict[str, Any]
LENGTHS = RecordedLengths(((10, 20), (30, 5_000)), num_cut=1, num_started=5, num_rounds=3)


def source(directory: Path, **changes: Any) -> RecordedJob:
    stored: Json = yaml.safe_load(manifest(directory).read_text())
    stored["status"] = {"phase": "Succeeded"}
    fields: Json = {"job": "small", "manifest": stored, "lengths": LENGTHS, "profile": None}
    return RecordedJob(**(fields | changes))


def test_the_spec_and_the_lengths_are_those_of_the_job(tmp_path: Path) -> None:
    inputs = read(SimulateOptions(None, model="7B", source=source(tmp_path)))
    assert inputs.name == "small"
    assert inputs.trace is not None
    assert inputs.trace.lengths.responses == ((10, 20), (30, 1_024)), "cut where the job would cut them"
    messages = list(notes(inputs, []))
    assert "From small: 3 rounds, and no profile: costs are those of the model and the GPU." in messages
    (missing,) = [one for one in messages if "aborted for good" in one]
    assert missing.startswith("20.0 % of the responses that small started")


def test_a_file_takes_the_place_of_the_spec_and_not_of_the_lengths(tmp_path: Path) -> None:
    (tmp_path / "changed").mkdir()
    changed = manifest(tmp_path / "changed", algorithm__maxResponseTokens=2_000)
    inputs = read(SimulateOptions(changed, model="7B", source=source(tmp_path)))
    assert inputs.spec.algorithm.max_response_tokens == 2_000
    assert inputs.trace is not None and inputs.trace.num_responses == 4


def test_the_profile_of_the_job_is_used_unless_another_is_named(tmp_path: Path) -> None:
    own = source(tmp_path, profile=json.dumps({"publishSeconds": 7.0}))
    assert read(SimulateOptions(None, model="7B", source=own)).profile.publish_s == 7.0
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"publishSeconds": 2.0}))
    assert read(SimulateOptions(None, model="7B", profile=other, source=own)).profile.publish_s == 2.0


def test_a_profile_that_cannot_be_read_is_named_after_its_job(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"^The profile of small: .*publishSeconds"):
        read(SimulateOptions(None, model="7B", source=source(tmp_path, profile='{"publishSeconds": "x"}')))


def test_a_job_without_a_whole_response_has_no_lengths(tmp_path: Path) -> None:
    nothing = source(tmp_path, lengths=RecordedLengths((), 5, 5, 1))
    with pytest.raises(CliError, match=r"^--from: no response of small has finished"):
        read(SimulateOptions(None, model="7B", source=nothing))


def test_lengths_come_from_one_place(tmp_path: Path) -> None:
    assert "--lengths and --from exclude each other" in refusal("--from", "a", "--lengths", tmp_path / "a.csv")


def test_recorded_episodes_bring_turns_and_time_where_the_manifest_has_environments(tmp_path: Path) -> None:
    lengths = replace(LENGTHS, groups=((EpisodeLength(10, 2, 1.5), EpisodeLength(20, 4, 90.0)),))
    for directory in ("with", "without"):
        (tmp_path / directory).mkdir()
    acting = manifest(tmp_path / "with", environments=TOOLS, data__chat={})
    inputs = read(SimulateOptions(acting, model="7B", source=source(tmp_path, lengths=lengths)))
    assert inputs.trace is not None and inputs.trace.lengths.responses == lengths.groups
    described = "Episodes: 3.0 turns in the mean; their environments took 45.8s in the median, 1m30s at most."
    assert described in notes(inputs, [])
    plain = read(SimulateOptions(manifest(tmp_path / "without"), model="7B", source=source(tmp_path, lengths=lengths)))
    assert plain.trace is not None and plain.trace.lengths.responses == ((10, 20),)
    assert not any(note.startswith("Episodes") for note in notes(plain, []))


def test_lengths_without_turns_leave_environments_out_and_say_so(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    acting = manifest(tmp_path, environments=TOOLS, data__chat={})
    inputs = read(SimulateOptions(acting, model="7B", source=source(tmp_path / "own")))
    (note,) = [one for one in notes(inputs, []) if one.startswith("Episodes")]
    assert note.startswith("Episodes: the lengths have no turns, so the time of environments is left out;")
