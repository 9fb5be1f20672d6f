"""What a checkpoint says about how its job goes on."""

from pathlib import Path
from typing import Any

import pytest

from longshore_runtime.checkpoint import CheckpointStore
from longshore_runtime.checkpoint_origin import Origin
from longshore_runtime.run_checkpoints import keeps_repeats
from tests.unit.runtime.scripted_loop import run


@pytest.mark.parametrize(
    ("state", "keeps"), [({}, True), ({"keeps_repeats": True}, True), ({"keeps_repeats": False}, False)]
)
def test_only_jobs_that_an_older_version_has_begun_keep_repeats_of_held_out_prompts(
    state: dict[str, Any], keeps: bool, tmp_path: Path
) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    assert not keeps_repeats(store), "a job without a checkpoint begins with what this version does"
    store.publish(3, state, {}, lambda directory: None)
    assert keeps_repeats(store) is keeps


def test_a_run_writes_down_that_it_keeps_none(tmp_path: Path) -> None:
    run(root=tmp_path)
    assert not keeps_repeats(CheckpointStore(tmp_path / "output" / "checkpoints", keep=2))


def test_a_run_writes_down_what_its_checkpoints_belong_to(tmp_path: Path) -> None:
    run(root=tmp_path, origins={"model": Origin("model.path", "models/a", "0f")})
    newest = CheckpointStore(tmp_path / "output" / "checkpoints", keep=2).newest()
    assert newest is not None
    assert newest.state()["origins"] == {"model": {"field": "model.path", "name": "models/a", "fingerprint": "0f"}}
