"""Requests to the downloading process and its answers, as JSON lines."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class RepositoryType(StrEnum):
    """Kinds of repositories."""

    MODEL = "model"
    DATASET = "dataset"


class DownloadFailure(StrEnum):
    """Reason why a download failed."""

    REPOSITORY = "repository"
    REVISION = "revision"
    GATED = "gated"
    TOKEN = "token"
    UNREACHABLE = "unreachable"
    """The Hub does not answer, or not as a Hub: the only trouble that may pass."""
    OFFLINE = "offline"
    STORAGE = "storage"
    NO_ROOM = "no_room"
    FILES = "files"
    DAMAGED = "damaged"


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DownloadRequest(_Message):
    """Request for files of one repository."""

    repository: str
    kind: RepositoryType
    revision: str
    """Branch, tag or commit of the repository."""
    config: str | None = None
    split: str = ""
    cache: str
    """Directory of all downloads, laid out as `huggingface_hub` does."""
    token_file: str | None = None


class Snapshot(_Message):
    """A download that is complete and verified."""

    commit: str
    path: str
    """Directory of the repository, relative to the cache."""
    files: dict[str, int]
    """Bytes of each file, by its name."""


class DownloadProgress(_Message):
    """Bytes that are there, and bytes of all that is wanted."""

    num_bytes: int
    total_bytes: int


class Failure(_Message):
    """Message that a download failed."""

    trouble: DownloadFailure
    detail: str


class Line(_Message):
    """One line of an answer; the last one is a snapshot or a failure."""

    outcome: DownloadProgress | Snapshot | Failure
