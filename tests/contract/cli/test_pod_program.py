"""The program that copies in the helper pod, as a process with that pod's environment."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from longshore.api import contract
from longshore_client.transfer.archive import unpack
from longshore_client.transfer.pod import HelperOptions, archive_command, helper_pod
from tests.unit.cli.test_archive import contents, packed


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Files in a storage."""
    root = tmp_path / "model"
    (root / "sub").mkdir(parents=True)
    (root / "config.json").write_text("{}")
    (root / "sub" / "weights.bin").write_bytes(bytes(range(256)) * 5000)
    return root


def test_the_program_of_the_pod_lists_and_names_what_there_is_instead(tmp_path: Path) -> None:
    for step in ("step-000001", "step-000002", ".unfinished-000003"):
        (tmp_path / "out" / "checkpoints" / step / "trainer").mkdir(parents=True)
        (tmp_path / "out" / "checkpoints" / step / "trainer" / "a").write_bytes(b"12345")
    done = in_pod(tmp_path, *archive_command("list", "out/checkpoints"))
    assert json.loads(done.stdout) == {"step-000001": 5, "step-000002": 5}
    assert json.loads(in_pod(tmp_path, *archive_command("list", "out/none")).stdout) == {}
    missing = in_pod(tmp_path, *archive_command("send", "out/checkpoints/step-000009/trainer"))
    assert missing.returncode == 1
    assert missing.stderr.decode().endswith("; out/checkpoints holds step-000001, step-000002\n")


def in_pod(root: Path, *command: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run what the helper pod runs, with its environment and the mount path replaced by `root`."""
    (container,) = helper_pod("claim", HelperOptions("image", {}), read_only=True, job=None)["spec"]["containers"]
    environment = {"PATH": os.environ["PATH"], **{item["name"]: item["value"] for item in container["env"]}}
    words = [str(root) if word == contract.STORAGE_MOUNT else word for word in command]
    return subprocess.run([sys.executable, *words[1:]], input=data, env=environment, capture_output=True, check=False)


def test_the_program_of_the_pod_sends(model: Path, tmp_path: Path) -> None:
    done = in_pod(model.parent, *archive_command("send", "model"))
    assert done.returncode == 0, done.stderr
    unpack(io.BytesIO(done.stdout), tmp_path / "copy")
    assert contents(tmp_path / "copy") == contents(model)


def test_the_program_of_the_pod_receives(model: Path, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    command = archive_command("receive", "models/tiny")
    assert in_pod(storage, *command, data=packed(model)).returncode == 0
    assert contents(storage / "models" / "tiny") == contents(model)
    again = in_pod(storage, *command, data=packed(model))
    assert again.returncode == 1
    assert b"exists already" in again.stderr
    assert in_pod(storage, *archive_command("receive", "models/tiny", "force"), data=packed(model)).returncode == 0


def test_the_whole_storage_is_never_replaced(model: Path, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    (storage / "theirs").write_text("theirs")
    done = in_pod(storage, *archive_command("receive", ".", "force"), data=packed(model))
    assert done.stderr == b"'.' is the whole storage: name a place in it, such as models/qwen\n"
    assert contents(storage) == {"theirs": b"theirs"}


@pytest.mark.parametrize(("path", "sentence"), [("../secret", "leads out of the storage"), ("nothing", "there is no")])
def test_the_program_of_the_pod_refuses_in_one_line(tmp_path: Path, path: str, sentence: str) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    (tmp_path / "secret").write_text("secret")
    done = in_pod(storage, *archive_command("send", path))
    assert done.returncode == 1
    assert sentence in done.stderr.decode()
    assert len(done.stderr.decode().splitlines()) == 1
