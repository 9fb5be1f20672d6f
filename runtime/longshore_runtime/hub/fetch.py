"""The downloading process: one repository by `huggingface_hub`, in a separate process that can be ended at any time.

The client reads its settings (`HF_ENDPOINT`, `HF_HUB_OFFLINE` and others) from the environment when it is imported.
Files are locked while they are downloaded, so that jobs which share a storage download them once.
"""

import glob
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from yaml import YAMLError

from longshore_runtime.hub import receipts
from longshore_runtime.hub.files import NoSuchFiles, data_files, model_files, unreadable_card
from longshore_runtime.hub.messages import (
    DownloadFailure,
    DownloadProgress,
    DownloadRequest,
    Failure,
    Line,
    RepositoryType,
    Snapshot,
)
from longshore_runtime.process.durable import is_no_room
from longshore_runtime.process.repeated import repeated

_PROGRESS_EVERY_S: Final = 1.0
_NUM_THREADS: Final = 4
_NUM_ATTEMPTS: Final = 2
"""Number of attempts to download a file: one whose checksum is wrong is downloaded once more."""
_CARD: Final = "README.md"
_MAX_CARD_BYTES: Final = 16 << 20
_QUERY: Final = re.compile(r"(?<=\w)\?[^\s'\"]+")
_XET: Final = re.compile(r"CAS Client Error|File reconstruction error")
"""Pattern in the RuntimeError of hf_xet, which downloads large files, for every fault of the network."""
_XET_REFUSED: Final = re.compile(r"401 Unauthorized|403 Forbidden")
_ABANDONED_S: Final = 600.0
"""Seconds without a write after which a download is abandoned: one that is under way writes more often."""


class DownloadFailed(Exception):
    """Raised when a download fails, with the reason for the process that asked."""

    def __init__(self, trouble: DownloadFailure, detail: str = "") -> None:
        super().__init__(detail)
        self.failure = Failure(trouble=trouble, detail=detail)


def main() -> None:
    """Answer one request."""
    answers = _take_stdout()
    request = DownloadRequest.model_validate_json(sys.stdin.buffer.readline())
    try:
        outcome: Snapshot | Failure = _snapshot(request, answers)
    except DownloadFailed as failed:
        outcome = failed.failure
    _say(answers, outcome)


def _take_stdout() -> BinaryIO:
    """Keep standard output for the answers; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _say(answers: BinaryIO, outcome: DownloadProgress | Snapshot | Failure) -> None:
    answers.write(Line(outcome=outcome).model_dump_json().encode() + b"\n")
    answers.flush()


def _snapshot(request: DownloadRequest, answers: BinaryIO) -> Snapshot:
    known = receipts.find(request)
    if known is not None and known.commit == request.revision:
        return known
    from huggingface_hub import is_offline_mode

    if is_offline_mode():
        if known is None:
            raise DownloadFailed(DownloadFailure.OFFLINE)
        return known
    snapshot = _Downloader(request, answers).snapshot()
    receipts.write(request, snapshot)
    return snapshot


class _Downloader:
    def __init__(self, request: DownloadRequest, answers: BinaryIO) -> None:
        from huggingface_hub import HfApi

        token = Path(request.token_file).read_text(encoding="utf-8").strip() if request.token_file else None
        self._request = request
        self._answers = answers
        self._cache = Path(request.cache)
        self._api = HfApi(token=token)
        self._repository = request.repository
        self._kind = request.kind.value

    def snapshot(self) -> Snapshot:
        from huggingface_hub.hf_api import RepoFile

        with _explained():
            info = self._api.repo_info(self._repository, repo_type=self._kind, revision=self._request.revision)
            commit = str(info.sha)
            tree = self._api.list_repo_tree(self._repository, repo_type=self._kind, revision=commit, recursive=True)
            sizes = {entry.path: entry.size for entry in tree if isinstance(entry, RepoFile)}
            files = {name: sizes[name] for name in self._chosen(sizes, commit)}
            self._remove_abandoned()
            self._require_room(files, commit)
            with self._reporting(files, commit):
                directory = self._downloaded(files, commit)
        return Snapshot(commit=commit, path=str(directory.relative_to(self._cache.resolve())), files=files)

    def _chosen(self, sizes: Mapping[str, int], commit: str) -> list[str]:
        request, names = self._request, list(sizes)
        if request.kind is RepositoryType.MODEL:
            return model_files(names)
        return data_files(names, self._card(sizes, commit), request.config, request.split)

    def _card(self, sizes: Mapping[str, int], commit: str) -> Mapping[str, Any]:
        """Return what the data set says of itself, as of its configurations. Raises: NoSuchFiles."""
        from huggingface_hub import metadata_load

        if _CARD not in sizes:
            return {}
        if sizes[_CARD] > _MAX_CARD_BYTES:
            raise unreadable_card(f"larger than {_MAX_CARD_BYTES >> 20} MiB")
        path = self._api.hf_hub_download(
            self._repository, _CARD, repo_type=self._kind, revision=commit, cache_dir=self._cache
        )
        try:
            return metadata_load(path) or {}
        except (YAMLError, ValueError, RecursionError) as error:
            raise unreadable_card(f"not readable ({_reason(error)})") from error

    def _remove_abandoned(self) -> None:
        """Remove partial files that a killed process left, because no download continues them."""
        for part in self._cache.glob("*/blobs/*.incomplete"):
            try:
                if time.time() - part.stat().st_mtime > _ABANDONED_S:
                    part.unlink()
            except FileNotFoundError:
                continue

    def _require_room(self, files: Mapping[str, int], commit: str) -> None:
        missing = sum(files.values()) - self._num_complete_bytes(files, commit)
        free = shutil.disk_usage(self._cache).free
        if missing > free:
            raise DownloadFailed(DownloadFailure.NO_ROOM, f"it needs {missing:,} bytes more, and {free:,} are free")

    def _downloaded(self, files: Mapping[str, int], commit: str) -> Path:
        """Return the directory of all files, once the Hub's checksums say that they are right."""
        for _ in range(_NUM_ATTEMPTS):
            directory = self._api.snapshot_download(
                self._repository,
                repo_type=self._kind,
                revision=commit,
                cache_dir=self._cache,
                allow_patterns=[glob.escape(name) for name in files] or ["/"],
                max_workers=_NUM_THREADS,
            )
            checked = self._api.verify_repo_checksums(
                self._repository, repo_type=self._kind, revision=commit, cache_dir=self._cache
            )
            wrong = [str(one["path"]) for one in checked.mismatches]
            if not wrong:
                return Path(directory)
            for name in wrong:
                path = Path(directory) / name
                path.resolve().unlink()
                path.unlink(missing_ok=True)
        raise DownloadFailed(DownloadFailure.DAMAGED, ", ".join(wrong))

    def _reporting(self, files: Mapping[str, int], commit: str) -> AbstractContextManager[None]:
        """Report the progress while the block runs, and not after it: the last line of the answer is the outcome."""
        total = sum(files.values())

        def report() -> None:
            done = min(total, self._num_bytes(files, commit))
            _say(self._answers, DownloadProgress(num_bytes=done, total_bytes=total))

        return repeated(report, _PROGRESS_EVERY_S)

    def _num_bytes(self, files: Mapping[str, int], commit: str) -> int:
        """Return the bytes of these files that are there, parts included."""
        parts = sum(map(_size, self._folder.glob("blobs/*.incomplete")))
        return self._num_complete_bytes(files, commit) + parts

    def _num_complete_bytes(self, files: Mapping[str, int], commit: str) -> int:
        return sum(_size(self._folder / "snapshots" / commit / name) for name in files)

    @property
    def _folder(self) -> Path:
        """Directory in which the client keeps the repository."""
        return self._cache / f"{self._kind}s--{self._repository.replace('/', '--')}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def _explained() -> Iterator[None]:
    """Translate errors of the client into sentences for the user."""
    try:
        yield
    except DownloadFailed:
        raise
    except NoSuchFiles as error:
        raise DownloadFailed(DownloadFailure.FILES, str(error)) from error
    except Exception as error:
        trouble = _trouble(error)
        if trouble is None:
            raise
        raise DownloadFailed(trouble, _reason(error)) from error


def _trouble(error: BaseException) -> DownloadFailure | None:
    """Return what an error of the client, or one that it was raised from, means; None: it is a bug."""
    import httpx2
    from huggingface_hub import errors

    if is_no_room(error, Path()):
        return DownloadFailure.NO_ROOM
    cause: BaseException | None = error
    while cause is not None:
        match cause:
            case errors.GatedRepoError():
                return DownloadFailure.GATED
            case errors.RevisionNotFoundError():
                return DownloadFailure.REVISION
            case errors.RepositoryNotFoundError() | errors.DisabledRepoError():
                return DownloadFailure.REPOSITORY
            case errors.HfHubHTTPError() if cause.response.status_code in (401, 403):
                return DownloadFailure.TOKEN
            case RuntimeError() if _XET.search(str(cause)):
                return DownloadFailure.TOKEN if _XET_REFUSED.search(str(cause)) else DownloadFailure.UNREACHABLE
            case errors.HfHubHTTPError() | httpx2.HTTPError() | ConnectionError() | TimeoutError():
                return DownloadFailure.UNREACHABLE
            case OSError() if cause.errno is not None:
                return DownloadFailure.STORAGE
            case OSError() | json.JSONDecodeError() if cause.__cause__ is None:
                return DownloadFailure.UNREACHABLE  # Less came than was promised, or something else than a Hub answers.
        cause = cause.__cause__ or cause.__context__
    return None


def _reason(error: BaseException) -> str:
    """Return the first line: further ones are advice for Python programs, and addresses may be signed."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return _QUERY.sub("", (lines or [type(error).__name__])[0])


if __name__ == "__main__":
    main()
