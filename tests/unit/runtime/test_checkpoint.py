"""Checkpoints appear complete or not at all, and bring everything back."""

import errno
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from longshore.api.training import TrainerBackend
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.checkpoints.store import CheckpointStore
from longshore_runtime.errors import Interrupted, UserError
from longshore_runtime.rollout.kept_file import read_kept, write_kept
from longshore_runtime.trainer.saved_by import require_own, sign
from longshore_runtime.trajectories.trajectory import Trajectory
from tests.checkpoints import write_checkpoint
from tests.properties import examples

KEPT = {
    ResponseId(Draw(1, 5), 2): Completion(
        "1-5-2",
        Trajectory.sampled(3, [7, 8], [-0.5, -0.25]) + Trajectory.sampled(4, [9], [-1.0]),
        FinishReason.ABORT,
        12,
    ),
    ResponseId(Draw(1, 5), 3): Completion(
        "1-5-3",
        Trajectory.sampled(4, [9, 3], [-1.0, -2.0]).with_experts(
            np.arange(24, dtype=np.uint16).reshape(4, 2, 3), num_prompt_tokens=3
        ),
        FinishReason.ABORT,
        12,
    ),
}


def save_weights(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"weights")
    (directory / "optimizer.pt").write_bytes(b"moments")
    (directory / "optimizer" / "exp_avg").mkdir(parents=True)
    (directory / "optimizer" / "exp_avg" / "00000-00.safetensors").write_bytes(b"moment")
    sign(directory, TrainerBackend.TORCH)


def test_a_published_checkpoint_restores_state_and_partial_responses(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    write_checkpoint(store, 3, {"policy": {"queue": [[0, 1]]}}, KEPT, save_weights)
    newest = store.newest()
    assert newest is not None
    assert newest.step == 3
    assert newest.state() == {"policy": {"queue": [[0, 1]]}}
    assert newest.kept() == KEPT
    assert (newest.model / "model.safetensors").read_bytes() == b"weights"
    assert (newest.model / "optimizer/exp_avg/00000-00.safetensors").read_bytes() == b"moment"


def test_an_interrupted_checkpoint_is_never_seen_and_does_not_stand_in_the_way(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    write_checkpoint(store, 1, {}, {}, save_weights)

    def dies(directory: Path) -> None:
        save_weights(directory)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_checkpoint(store, 2, {}, {}, dies)
    newest = store.newest()
    assert newest is not None and newest.step == 1
    assert write_checkpoint(store, 2, {}, {}, save_weights).step == 2


def test_an_unfinished_checkpoint_of_an_ended_coordinator_is_removed_before_the_next(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    write_checkpoint(store, 10, {}, {}, save_weights)
    left = tmp_path / "checkpoints" / ".unfinished-000013" / "trainer"
    left.mkdir(parents=True)
    save_weights(left)
    write_checkpoint(store, 20, {}, {}, save_weights)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-000010", "step-000020"]


def test_what_is_written_of_a_checkpoint_is_compared_with_the_newest_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    assert store.progress(1) == (0, 0)
    seen: list[tuple[int, int]] = []

    def save(directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"x" * 1000)
        seen.append(store.progress(step))

    for step in (1, 2):
        write_checkpoint(store, step, {}, {}, save)
    assert seen[0] == (1000, 0), "the first one is compared with none"
    (done, total) = seen[1]
    assert done == 1000 < total


def test_a_checkpoint_of_a_session_that_has_ended_appears_no_more(tmp_path: Path) -> None:
    """Another session goes on from an older one, and must not find it later."""
    ended = CheckpointStore(tmp_path / "checkpoints", keep=2)
    finish = ended.begin(1, {}, {}, lambda directory: partial(save_weights, directory))
    ended.close()
    with pytest.raises(Interrupted, match="session has ended"):
        finish()
    again = CheckpointStore(tmp_path / "checkpoints", keep=2)
    assert again.newest() is None
    assert write_checkpoint(again, 1, {}, {}, save_weights) == again.newest()


def test_an_existing_checkpoint_keeps_its_weights_and_takes_the_evaluated_state(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    write_checkpoint(store, 10, {"evaluated_step": 0}, KEPT, save_weights)
    again = write_checkpoint(store, 10, {"evaluated_step": 10}, KEPT, lambda _: pytest.fail("the weights are there"))
    assert (again.state(), again.kept()) == ({"evaluated_step": 10}, KEPT)
    assert store.newest() == again


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    for step in (5, 10, 15):
        write_checkpoint(store, step, {}, {}, save_weights)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-000010", "step-000015"]


def test_an_undeletable_old_checkpoint_is_hidden_and_tried_again_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=1)
    write_checkpoint(store, 1, {}, {}, save_weights)
    delete = shutil.rmtree

    def in_use(path: Path, ignore_errors: bool = False) -> None:
        if path.name.endswith("step-000001"):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path / "trainer"))
        delete(path, ignore_errors=ignore_errors)

    with monkeypatch.context() as patched:
        patched.setattr("longshore_runtime.checkpoints.store.shutil.rmtree", in_use)
        assert write_checkpoint(store, 2, {}, {}, save_weights).step == 2
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] == ["step-000002"]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    write_checkpoint(store, 3, {}, {}, save_weights)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000003"]


def test_a_copy_that_a_user_keeps_beside_the_checkpoints_is_no_checkpoint_and_stays(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    store = CheckpointStore(directory, keep=1)
    write_checkpoint(store, 1, {}, {}, save_weights)
    for name in ("step-000001.bak", "step-best", "step-2"):
        shutil.copytree(directory / "step-000001", directory / name)
    newest = store.newest()
    assert newest is not None and newest.step == 1
    write_checkpoint(store, 2, {}, {}, save_weights)
    assert sorted(path.name for path in directory.iterdir()) == [
        "step-000001.bak",
        "step-000002",
        "step-2",
        "step-best",
    ]


def test_a_backend_goes_on_from_its_own_checkpoints_only(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(CheckpointStore(tmp_path / "checkpoints", keep=1), 1, {}, {}, save_weights)
    require_own(checkpoint.model, TrainerBackend.TORCH)
    with pytest.raises(UserError, match=r"^trainer\.backend: the newest checkpoint was saved by Torch.* set it back"):
        require_own(checkpoint.model, TrainerBackend.MEGATRON)


STATE: Final = {"run": {}, "recorder": {}, "rewards": {}, "alarms": {}, "origins": {}, "lengths": {}}


def save_whole(directory: Path) -> None:
    """The files of every backend, in their formats."""
    save_file({"weight": np.arange(8, dtype=np.float32)}, directory / "model.safetensors")
    (directory / "trainer.json").write_text('{"weights": [1, 2]}')
    with zipfile.ZipFile(directory / "trainer.pt", "w") as archive:
        archive.writestr("trainer/data.pkl", b"pickled" * 100)
    sign(directory, TrainerBackend.TORCH)


def stored(root: Path, *steps: int, keep: int = 2) -> CheckpointStore:
    store = CheckpointStore(root, keep)
    for step in steps:
        write_checkpoint(store, step, STATE, KEPT, save_whole)
    return store


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("file", "damage", "reason"),
    [
        ("state.json", cut, "state.json cannot be read"),
        ("state.json", lambda file: file.write_text("{}"), "state.json cannot be read: it has no 'run'"),
        ("state.json", Path.unlink, "state.json is missing"),
        ("kept.arrow", cut, "kept.arrow cannot be read: its checksum is another"),
        ("kept.arrow", lambda file: file.write_text("[{}]"), "kept.arrow cannot be read: its checksum is another"),
        ("kept.arrow", lambda file: file.write_bytes(b""), "kept.arrow cannot be read: its checksum is another"),
        ("trainer/trainer_backend", Path.unlink, "trainer/trainer_backend is missing"),
        ("trainer/trainer.json", cut, "trainer/trainer.json cannot be read"),
        ("trainer/trainer.pt", cut, "trainer/trainer.pt cannot be read: File is not a zip file"),
        (
            "trainer/trainer.pt",
            lambda file: file.write_bytes(file.read_bytes().replace(b"pickledpickled", b"\0" * 14)),
            "trainer/trainer.pt cannot be read: Bad CRC-32 for file 'trainer/data.pkl'",
        ),
        ("trainer/model.safetensors", cut, "trainer/model.safetensors is cut off"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(
    tmp_path: Path, file: str, damage: Callable[[Path], object], reason: str
) -> None:
    store = stored(tmp_path, 10, 20)
    damage(tmp_path / "step-000020" / file)
    said: list[str] = []
    newest = store.newest_whole(said.append)
    assert newest is not None and newest.step == 10 and newest == store.newest()
    (sentence,) = said
    assert sentence.startswith(f"the checkpoint of step 20 is damaged: {reason}")
    assert sentence.endswith("The job continues from step 10; the rest is in damaged-step-000020")
    assert store.newest_whole(pytest.fail) == newest, "it is said once"


@given(st.data())
@settings(max_examples=examples(100))
def test_no_damaged_block_of_kept_tokens_is_read(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kept.arrow"
        write_kept(path, KEPT)
        content = bytearray(path.read_bytes())
        first = data.draw(st.integers(0, len(content) - 1))
        block = data.draw(st.binary(min_size=1, max_size=600))[: len(content) - first]
        assume(content[first : first + len(block)] != block)
        content[first : first + len(block)] = block
        path.write_bytes(content)
        with pytest.raises(ValueError, match="its checksum is another"):
            read_kept(path)


@pytest.mark.parametrize("kept", [{}, KEPT])
def test_kept_tokens_are_read_as_they_were_written(tmp_path: Path, kept: dict[ResponseId, Completion]) -> None:
    write_kept(tmp_path / "kept.arrow", kept)
    assert read_kept(tmp_path / "kept.arrow") == kept


def test_whole_checkpoints_are_not_set_aside(tmp_path: Path) -> None:
    newest = stored(tmp_path, 10, 20).newest_whole(pytest.fail)
    assert newest is not None and newest.step == 20
    assert CheckpointStore(tmp_path / "nothing", 2).newest_whole(pytest.fail) is None


def test_a_job_without_a_readable_checkpoint_ends_and_keeps_all_of_them(tmp_path: Path) -> None:
    store = stored(tmp_path, 10, 20)
    for step in (10, 20):
        cut(tmp_path / f"step-0000{step}" / "trainer/trainer.pt")
    message = r"^storage\.output: the checkpoint of step 20 is damaged: trainer/trainer\.pt .*, and no older one"
    with pytest.raises(UserError, match=message):
        store.newest_whole(pytest.fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000010", "step-000020"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_storage_that_does_not_answer_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = stored(tmp_path, 10, 20)

    def fails(path: Path) -> bytes:
        raise OSError(number, "the storage fails", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fails)
        with pytest.raises(OSError, match="the storage fails"):
            store.newest_whole(pytest.fail)
    newest = store.newest()
    assert newest is not None and newest.step == 20


def test_a_damaged_checkpoint_stays_until_newer_ones_are_kept(tmp_path: Path) -> None:
    store = stored(tmp_path, 10, 20)
    cut(tmp_path / "step-000020" / "state.json")
    store.newest_whole(lambda _: None)
    seen = []
    for step in (20, 30, 40):
        write_checkpoint(store, step, STATE, KEPT, save_whole)
        seen.append(sorted(path.name for path in tmp_path.iterdir()))
    assert seen == [
        ["damaged-step-000020", "step-000010", "step-000020"],
        ["damaged-step-000020", "step-000020", "step-000030"],
        ["step-000030", "step-000040"],
    ]


def test_a_checkpoint_before_the_first_update_is_no_measure_for_the_next(tmp_path: Path) -> None:
    store = stored(tmp_path, 0)
    assert store.progress(10) == (0, 0)
    stored(tmp_path, 10)
    assert store.progress(20)[1] > 0
