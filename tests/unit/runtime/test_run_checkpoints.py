"""What a checkpoint says about how its job goes on."""

from pathlib import Path

from longshore_runtime.checkpoints.origin import Origin
from longshore_runtime.checkpoints.store import CheckpointStore
from tests.unit.runtime.scripted_loop import run


def test_a_run_writes_down_what_its_checkpoints_belong_to(tmp_path: Path) -> None:
    run(root=tmp_path, origins={"model": Origin("model.path", "models/a", "0f")})
    newest = CheckpointStore(tmp_path / "output" / "checkpoints", keep=2).newest()
    assert newest is not None
    assert newest.state()["origins"] == {"model": {"field": "model.path", "name": "models/a", "fingerprint": "0f"}}
