"""Copies out of a claim, with a helper pod that only sends."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from longshore_client.errors import ClientError
from longshore_client.kube import Kube
from longshore_client.transfer import archive, copy
from longshore_client.transfer.copy import StorageClaim, fetch
from longshore_client.transfer.pod import HelperOptions
from longshore_kube.resources import Json
from tests.unit.cli.test_archive import archive_of, packed

CLAIM = StorageClaim("shared", HelperOptions("python:3.12", {}))
FRAME_BYTES = 1 << 16
NUM_FRAMES = 100


class OnePod:
    """As much of `Kube` as a helper pod takes, which runs at once."""

    namespace = "default"

    def request(self, method: str, path: str, body: Json | None = None, **_: Any) -> Json:
        return {"metadata": {"name": "helper"}}

    def watch(self, *_: Any, **options: Any) -> Iterator[tuple[str, Json]]:
        yield "ADDED", {"metadata": {"name": "helper"}, "status": {"phase": "Running"}}


class Sending:
    """A channel whose program sends `data` and then, where it has a `reason`, fails with it."""

    def __init__(self, data: bytes, reason: str | None = None) -> None:
        self.num_taken, self.num_closed = 0, 0
        self._frames = iter([data[start : start + FRAME_BYTES] for start in range(0, len(data), FRAME_BYTES)])
        self._reason = reason

    def receive(self) -> bytes:
        self.num_taken += 1
        return next(self._frames, b"")

    def finish(self) -> None:
        while self.receive():
            pass
        if self._reason is not None:
            raise ClientError(self._reason)

    def close(self) -> None:
        self.num_closed += 1


def fetched(sending: Sending, destination: Path, monkeypatch: pytest.MonkeyPatch, *, force: bool = False) -> int:
    """Fetch what is sent."""
    monkeypatch.setattr(copy, "Channel", lambda *_: sending)
    return fetch(cast(Kube, OnePod()), CLAIM, "output", destination, force=force)


def large(size_bytes: int, *, is_file: bool) -> bytes:
    """An archive that says it is of that size, and is of NUM_FRAMES frames."""
    index = json.dumps({"bytes": size_bytes, "isFile": is_file}).encode()
    return archive_of((archive.INDEX, index), ("weights", bytes(NUM_FRAMES * FRAME_BYTES))).getvalue()


def test_a_copy_without_room_is_refused_before_the_rest_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = Sending(large(10**18, is_file=False))
    with pytest.raises(ClientError, match=r"^The copy failed: there is no room in .*: 1,000,000,000,000,000,000 bytes"):
        fetched(sending, tmp_path / "copy", monkeypatch)
    assert sending.num_taken < NUM_FRAMES / 10
    assert sending.num_closed == 1


def test_a_file_for_the_place_of_a_directory_is_refused_before_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = Sending(large(1, is_file=True))
    (tmp_path / "results").mkdir()
    with pytest.raises(ClientError, match=r"^The copy failed: .*results is a directory"):
        fetched(sending, tmp_path / "results", monkeypatch, force=True)
    assert sending.num_taken < NUM_FRAMES / 10
    assert sending.num_closed == 1


@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_a_copy_that_was_cut_off_fails_with_the_reason_of_its_sender(
    kept: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(bytes(100_000))
    whole = packed(tmp_path / "weights")
    cut = whole[: int(len(whole) * kept)]
    with pytest.raises(ClientError, match=r"^The copy failed: there is no 'output' in the storage$"):
        fetched(Sending(cut, "The copy failed: there is no 'output' in the storage"), tmp_path / "a", monkeypatch)
    with pytest.raises(ClientError, match=r"^The copy failed: the copy was cut off before its end$"):
        fetched(Sending(cut), tmp_path / "a", monkeypatch)


def test_a_copy_that_comes_whole_still_fails_where_its_sender_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(b"heavy")
    whole = packed(tmp_path / "weights")
    assert fetched(Sending(whole), tmp_path / "a", monkeypatch) == 1
    with pytest.raises(ClientError, match="killed"):
        fetched(Sending(whole, "The copy failed: killed"), tmp_path / "b", monkeypatch)
