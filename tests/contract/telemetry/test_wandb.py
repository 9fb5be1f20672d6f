"""Weights & Biases offline: what `wandb sync` would upload."""

import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from longshore.api.tracking import Wandb, WandbMode
from longshore_runtime.telemetry.tracker import TrackedRun
from longshore_runtime.telemetry.trackers import TrackerThread
from tests.unit.runtime.telemetry.test_trackers import wait_for

NAMES = ("actor/pg_loss", "val/reward/mean")
"""Reported one after the other."""


def records(path: Path) -> Iterator[Any]:
    """Records of a file that is smaller than a block: a header, then records with checksum, length and kind.

    The service of the package writes it a moment later than its client tells.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    content = path.read_bytes()
    assert content.startswith(b":W&B") and len(content) < 32 * 1024
    at = 7
    while at + 7 <= len(content):
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        if at + 7 + size > len(content):
            return
        assert kind == 1, "a record is whole"
        yield Record.FromString(content[at + 7 : at + 7 + size])
        at += 7 + size


def value(history: Any, name: str) -> str:
    """Value of a metric, as JSON."""
    (found,) = [item.value_json for item in history.item if name in (item.key, *item.nested_key)]
    return str(found)


def attempt(output: Path, steps: range, succeeded: bool | None) -> None:
    from longshore_runtime.telemetry.wandb_tracker import WandbTracker

    run = TrackedRun("uid-1", "demo", "arithmetic", "seeds", {"algorithm": {"steps": 6}}, output)
    reported: list[str] = []
    options = Wandb(mode=WandbMode.OFFLINE)
    thread = TrackerThread("wandb", lambda: WandbTracker(options, None), run, reported.append)
    for step in steps:
        thread.log(step, {"actor/pg_loss": step / 10})
        thread.log(step, {"val/reward/mean": 0.5})
    thread.close(succeeded, limit_s=240)
    assert (reported, thread.num_lost) == ([], 0)


@dataclass
class ResumedRun:
    """Online, a run of four steps that is resumed: it ignores values of earlier steps."""

    resumed: bool = True
    step: int = 5
    logged: dict[int, dict[str, float]] = field(default_factory=dict)

    def log(self, values: dict[str, float], step: int) -> None:
        if step >= self.step:
            self.logged[step] = values


def test_an_evaluation_that_only_a_later_attempt_finishes_is_not_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    from longshore_runtime.telemetry.wandb_tracker import WandbTracker

    resumed = ResumedRun()
    monkeypatch.setattr(wandb, "init", lambda **_: resumed)
    tracker = WandbTracker(Wandb(mode=WandbMode.OFFLINE), None)
    assert tracker.start(TrackedRun("uid-1", "demo", "arithmetic", None, {}, tmp_path)) == 4
    tracker.log(4, {"val/reward/mean": 0.5})
    assert resumed.logged == {5: {"val/reward/mean": 0.5}}


def test_the_attempts_of_a_job_are_written_as_one_run(tmp_path: Path) -> None:
    attempt(tmp_path, range(1, 3), None)
    attempt(tmp_path, range(3, 5), True)
    reporting = [thread.name for thread in threading.enumerate() if thread.name.startswith("Otel")]
    assert reporting == [], "the package sends nothing about itself to its maker"
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-uid-1.wandb"))
    wait_for(lambda: all(any(record.HasField("exit") for record in records(path)) for path in files))
    steps: dict[int, dict[str, float]] = {}
    codes = []
    for path in files:
        found = list(records(path))
        (run,) = [record.run for record in found if record.HasField("run")]
        assert (run.run_id, run.display_name, run.project, run.run_group) == ("uid-1", "demo", "arithmetic", "seeds")
        assert {item.key: item.value_json for item in run.config.update}["algorithm"] == '{"steps":6}'
        for record in found:
            if record.HasField("history"):
                steps[int(value(record.history, "_step"))] = {
                    name: float(value(record.history, name)) for name in NAMES
                }
            if record.HasField("exit"):
                codes.append(record.exit.exit_code)
    assert steps == {step: dict(zip(NAMES, (step / 10, 0.5), strict=True)) for step in range(1, 5)}
    assert codes == [0] * len(files)
