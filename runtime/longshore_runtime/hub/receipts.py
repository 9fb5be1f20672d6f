"""Notes about finished downloads: a job that asks for the same again needs no network."""

import hashlib
from pathlib import Path

from pydantic import ValidationError

from longshore_runtime.hub.messages import DownloadRequest, Snapshot
from longshore_runtime.process.durable import write_whole


def find(request: DownloadRequest) -> Snapshot | None:
    """Return what was downloaded for this request before, if every file is still there."""
    try:
        snapshot = Snapshot.model_validate_json(_path(request).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    directory = Path(request.cache) / snapshot.path
    return snapshot if all(_size(directory / name) == size for name, size in snapshot.files.items()) else None


def write(request: DownloadRequest, snapshot: Snapshot) -> None:
    """Remember a verified download under the requested revision and under its commit."""
    for revision in {request.revision, snapshot.commit}:
        path = _path(request.model_copy(update={"revision": revision}))
        write_whole(path, snapshot.model_dump_json().encode())


def _path(request: DownloadRequest) -> Path:
    request_json = request.model_dump_json(exclude={"cache", "token_file"})
    return Path(request.cache) / "receipts" / f"{hashlib.sha256(request_json.encode()).hexdigest()[:32]}.json"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1
