"""What a run leaves in `samples/` and `rounds/`: every step once, whatever becomes of trainers and attempts."""

import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from longshore.api.model import Evaluation
from longshore.api.names import Component
from longshore.api.records import Records
from longshore.api.rollout import Strategy
from longshore.policy.draws import Draw
from longshore.record.facts import LanePlace
from longshore.record.model import RecordOutcome, RoundRecord
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.telemetry import samples as sample_files
from longshore_runtime.telemetry.samples import SCHEMA, is_kept
from longshore_runtime.telemetry.step_done import JobFacts, Places
from longshore_runtime.telemetry.step_records import StepRecords
from tests.unit.runtime import scripted_loop as loop

Json = dict[str, Any]
PLACES = Places(
    tuple(LanePlace(engine, (engine,), Component.WORKER, (0,)) for engine in range(2)),
    (LanePlace(0, (0,), Component.WORKER, (0,)),),
)
HELD_OUT = tuple(PromptRecord(index, f"held out {index}", (index, 1, 2), "answer") for index in range(6))
JOB = JobFacts(1, loop.PROMPTS.train, HELD_OUT, 64, is_colocated=True, clock_offset_s=1e9)


def recorded(output: Path, options: Records | None = None, reported: list[str] | None = None) -> StepRecords:
    on_trouble = (reported if reported is not None else []).append
    return StepRecords(output, options or Records(), JOB, lambda: PLACES, on_trouble, max_waiting=100)


def run(root: Path, options: Records | None = None, **more: Any) -> loop.Outcome:
    records = recorded(root / "output", options)
    outcome = loop.run(root=root, records=records, **more)
    records.close()
    assert records.num_lost == 0
    return outcome


def samples(root: Path) -> dict[int, list[Json]]:
    """Rows by step."""
    found = {}
    for path in sorted((root / "output" / "samples").iterdir()):
        table = pq.read_table(path)
        assert table.schema.equals(SCHEMA)
        found[int(path.name[5:11])] = table.to_pylist()
    return found


def evaluations(root: Path) -> dict[int, list[Json]]:
    """Rows of held-out prompts by step."""
    return {int(path.name[5:11]): pq.read_table(path).to_pylist() for path in (root / "output" / "held-out").iterdir()}


def rounds(root: Path) -> list[RoundRecord]:
    return [RoundRecord.from_bytes(path.read_bytes()) for path in sorted((root / "output" / "rounds").iterdir())]


def test_every_response_that_was_trained_on_is_there_with_text_reward_and_advantage(tmp_path: Path) -> None:
    outcome = run(tmp_path)
    found = samples(tmp_path)
    assert list(found) == [row["step"] for row in outcome.ledger]
    for ledger in outcome.ledger:
        rows = found[ledger["step"]]
        trained = [(row["draw"], row["response_index"]) for row in rows if row["outcome"] == "accepted"]
        assert sorted(trained) == sorted((draw, one) for draw, some in ledger["trained"].items() for one in some)
        for row in rows:
            assert row["step"] == row["round"] == ledger["step"]
            assert row["response"] == " ".join(map(str, range(row["response_tokens"])))
            assert (row["prompt"], row["answer"]) == (f"p{row['prompt_index']}", "answer")
            assert sum(run["tokens"] for run in row["versions"]) == row["response_tokens"]
            assert [run["policy_version"] for run in row["versions"]] == ledger["policy_versions"]
        by_draw: dict[str, list[float]] = {}
        for row in rows:
            by_draw.setdefault(row["draw"], []).append(row["advantage"])
        assert all(sum(advantages) == pytest.approx(0.0, abs=1e-5) for advantages in by_draw.values())


def test_every_response_to_held_out_prompts_is_there_apart_from_the_training(tmp_path: Path) -> None:
    evaluation = Evaluation(every_steps=2, responses_per_prompt=3)
    outcome = run(tmp_path, held_out=HELD_OUT, evaluation=evaluation)
    last = outcome.ledger[-1]["step"]
    updates = {row["step"]: row["num_updates"] for row in outcome.ledger}
    found = evaluations(tmp_path)
    assert sorted(found) == sorted({0, 2, last}), "before the first step, every two steps, at the end"
    for step, rows in found.items():
        assert {(row["prompt"], row["response_index"]) for row in rows} == {
            (prompt.prompt, index) for prompt in HELD_OUT for index in range(3)
        }
        version = sum(num for of_step, num in updates.items() if of_step <= step)
        assert {row["versions"][0]["policy_version"] for row in rows} == {version}
        assert {(row["kind"], row["outcome"], row["advantage"]) for row in rows} == {("Evaluation", "evaluated", None)}
    assert all(not row["prompt"].startswith("held out") for rows in samples(tmp_path).values() for row in rows)


def test_an_attempt_that_continues_forgets_evaluations_beyond_its_checkpoint(tmp_path: Path) -> None:
    records = recorded(tmp_path / "output")
    directory = tmp_path / "output" / "held-out"
    directory.mkdir(parents=True)
    for step in (0, 2, 4):
        (directory / f"step-{step:06d}.parquet").write_bytes(b"rows")
    records.rewind(2)
    records.close()
    assert sorted(path.name for path in directory.iterdir()) == ["step-000000.parquet", "step-000002.parquet"]


def test_records_to_be_written_when_a_run_recovers_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_begin = threading.Event()

    def write_later(*arguments: Any) -> bytes | None:
        may_begin.wait()
        return write_now(*arguments)

    write_now = sample_files.samples_file
    monkeypatch.setattr(sample_files, "samples_file", write_later)
    records = recorded(tmp_path / "output")
    loop.run(root=tmp_path, records=records)
    assert not (tmp_path / "output" / "rounds").exists(), "nothing is written yet"
    records.rewind(1)
    may_begin.set()
    records.close()
    assert records.num_lost == 0
    assert list(samples(tmp_path)) == [record.step for record in rounds(tmp_path)] == [1]


def test_the_record_of_a_round_says_what_became_of_its_responses(tmp_path: Path) -> None:
    outcome = run(tmp_path)
    found = rounds(tmp_path)
    assert [record.step for record in found] == [row["step"] for row in outcome.ledger]
    for record, ledger in zip(found, outcome.ledger, strict=True):
        accepted = {row.response for row in record.responses if row.outcome is RecordOutcome.ACCEPTED}
        assert accepted == {f"{draw}-{one}" for draw, some in ledger["trained"].items() for one in some}
        deferred = {row.draw for row in record.groups if row.outcome is RecordOutcome.DEFERRED}
        assert deferred <= set(ledger["deferred"])
        assert record.kind.value == ledger["kind"]
        assert record.started > 1e9
        assert all(row.accepted_s is not None for row in record.groups if row.outcome is RecordOutcome.ACCEPTED)


def test_tokens_of_several_weights_are_distinguished(tmp_path: Path) -> None:
    run(tmp_path, strategy=Strategy.PARTIAL_ROLLOUT)
    versions = [row["versions"] for rows in samples(tmp_path).values() for row in rows]
    assert any(len(runs) > 1 for runs in versions)
    kept = [row for record in rounds(tmp_path) for row in record.responses if row.outcome is RecordOutcome.KEPT]
    assert {row.finish for row in kept} == {"abort", "stop"}, "whole responses wait with their group"


def test_an_attempt_that_continues_repeats_no_step(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    run(whole)
    broken = tmp_path / "broken"
    broken.mkdir()
    # Past the checkpoint of step 2, an attempt has recorded steps 3 and 4, and begun with step 5.
    run(broken, algorithm=loop.ALGORITHM.model_copy(update={"steps": 2}), on_finish=loop.OnFinish.LEAVE)
    directory = broken / "output" / "samples"
    for step in (3, 4):
        (directory / f"step-00000{step}.parquet").write_bytes((directory / "step-000001.parquet").read_bytes())
    (directory / ".step-000005.parquet").write_bytes(b"half")
    run(broken)
    assert samples(broken) == samples(whole)
    assert [record.step for record in rounds(broken)] == [record.step for record in rounds(whole)]


def test_a_share_keeps_whole_groups_of_the_same_prompts(tmp_path: Path) -> None:
    run(tmp_path, Records(sample_share=0.5))
    rows = [row for found in samples(tmp_path).values() for row in found]
    assert rows and all(is_kept(Draw(0, row["prompt_index"]), 0.5) for row in rows)
    groups = [(row["step"], row["draw"]) for row in rows]
    assert all(groups.count(group) == 2 for group in groups)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_prompts_is_about_that_share(share: float) -> None:
    kept = sum(is_kept(Draw(1, index), share) for index in range(10_000))
    assert kept == pytest.approx(10_000 * share, rel=0.05)


@pytest.mark.parametrize("options", [Records(sample_share=0.0), Records(max_samples_size=0)], ids=["share", "size"])
def test_without_samples_rounds_alone_are_recorded(options: Records, tmp_path: Path) -> None:
    run(tmp_path, options)
    assert {"samples", "rounds"} & {path.name for path in (tmp_path / "output").iterdir()} == {"rounds"}


def test_a_disk_that_refuses_costs_records_and_no_step(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "samples").write_text("in the way")
    reported: list[str] = []
    records = StepRecords(tmp_path / "output", Records(), JOB, lambda: PLACES, reported.append, max_waiting=100)
    outcome = loop.run(root=tmp_path, records=records)
    records.close()
    assert outcome.ledger == loop.plain_run().ledger
    assert records.num_lost == len(outcome.ledger)
    assert len(reported) == 1 and "samples" in reported[0]
