"""Download a job's models and data from the Hub once, and pin the commits, so that restarts use the same ones."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from longshore.api import contract
from longshore.api.addresses import redacted
from longshore.api.hub import DEFAULT_ENDPOINT, Hub
from longshore.api.model import Model, Source
from longshore.api.objectives.distillation import AT as TEACHER
from longshore.api.objectives.distillation import Teacher
from longshore_runtime.errors import UserError
from longshore_runtime.hub.messages import (
    DownloadFailure,
    DownloadProgress,
    DownloadRequest,
    Failure,
    Line,
    RepositoryType,
    Snapshot,
)
from longshore_runtime.process.durable import write_whole

log = structlog.get_logger()

_CACHE: Final = "cache/hub"
_PINS: Final = "hub.json"
_MAIN: Final = "main"
_RETRY_AFTER_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between retries of a download that breaks off; they start again once bytes have arrived."""
_REPORT_INTERVAL_S: Final = 5.0

OnProgress = Callable[[str, int, int], None]
"""Function that is called with the repository, the bytes that are there, and the bytes of the whole."""


@dataclass(frozen=True)
class Wanted:
    """A repository that a field of the spec names."""

    at: str
    """Field of the spec: such as `model`, `data` or `data.sources[name]`."""
    repository: str
    kind: RepositoryType
    revision: str = _MAIN
    config: str | None = None
    split: str = ""


@dataclass(frozen=True)
class Downloaded:
    """Directory of a downloaded repository, and the files that the job needs of it."""

    directory: Path
    files: tuple[str, ...]


def wanted(model: Model, data_sets: Iterable[Source], teacher: Teacher | None = None) -> list[Wanted]:
    """Return the repositories of the Hub that a job uses."""
    found = []
    if model.hub is not None:
        found.append(Wanted("model", model.hub, RepositoryType.MODEL, model.revision or _MAIN))
    if teacher is not None and teacher.hub is not None:
        found.append(Wanted(TEACHER, teacher.hub, RepositoryType.MODEL, teacher.revision or _MAIN))
    for source in data_sets:
        origin = source.origin
        if origin.hub is not None:
            what = origin.revision or _MAIN, origin.config, origin.split
            found.append(Wanted(source.at, origin.hub, RepositoryType.DATASET, *what))
    return found


class Downloads:
    """The downloads of a job: the cache that it shares with others, and its pins."""

    def __init__(
        self, storage: Path, output: Path, hub: Hub, on_progress: OnProgress, retry_after_s: Sequence[float] = ()
    ) -> None:
        self._cache = storage / _CACHE
        self._pins = output / _PINS
        self._hub = hub
        self._on_progress = on_progress
        self._retry_after_s = tuple(retry_after_s) or _RETRY_AFTER_S

    def fetch(self, one: Wanted) -> Downloaded:
        """Download a repository unless it is there; raises UserError with the field to blame."""
        pins = self._read_pins()
        reference = f"{one.repository}@{one.revision}"
        revision = pins.get(one.at, {}).get(reference, one.revision)
        snapshot = self._downloaded(one, revision)
        if pins.get(one.at) != {reference: snapshot.commit}:
            pins[one.at] = {reference: snapshot.commit}
            write_whole(self._pins, json.dumps(pins, indent=2).encode())
        log.info("from the hub", field=one.at, repository=one.repository, commit=snapshot.commit)
        return Downloaded(self._cache / snapshot.path, tuple(snapshot.files))

    def _downloaded(self, one: Wanted, revision: str) -> Snapshot:
        self._cache.mkdir(parents=True, exist_ok=True)
        request = DownloadRequest(
            repository=one.repository,
            kind=one.kind,
            revision=revision,
            config=one.config,
            split=one.split,
            cache=str(self._cache.resolve()),
            token_file=os.environ.get(contract.ENV_HUB_TOKEN),
        )
        waits_s, most_bytes = list(self._retry_after_s), 0
        while True:
            attempt = _DownloadAttempt(request, _environment(self._hub), partial(self._on_progress, one.repository))
            outcome = attempt.run()
            if isinstance(outcome, Snapshot):
                return outcome
            if attempt.num_bytes > most_bytes:
                waits_s, most_bytes = list(self._retry_after_s), attempt.num_bytes
            if outcome.trouble is not DownloadFailure.UNREACHABLE or not waits_s:
                reason = _sentence(one, outcome, self._endpoint(), has_token=request.token_file is not None)
                raise UserError(redacted(reason))
            log.warning("the hub cannot be reached; trying again", reason=redacted(outcome.detail), wait_s=waits_s[0])
            time.sleep(waits_s.pop(0))

    def _endpoint(self) -> str:
        return self._hub.endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT

    def _read_pins(self) -> dict[str, dict[str, str]]:
        try:
            found: dict[str, dict[str, str]] = json.loads(self._pins.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise UserError(
                f"storage.output: {self._pins}, which holds the commits of model and data, is damaged ({error}); "
                "restore it, or remove it to take those that the Hub has now"
            ) from error
        return found


class _DownloadAttempt:
    """One run of the downloading process."""

    def __init__(
        self, request: DownloadRequest, environment: Mapping[str, str], on_progress: Callable[[int, int], None]
    ) -> None:
        self._request = request
        self._environment = environment
        self._on_progress = on_progress
        self._reported_s = float("-inf")
        self.num_bytes = 0
        """Downloaded bytes, by the newest report of the process."""

    def run(self) -> Snapshot | Failure:
        """Run the downloading process to its end; leaving earlier, as on SIGTERM, ends it."""
        with self._process() as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(self._request.model_dump_json().encode() + b"\n")
            process.stdin.flush()
            for line in process.stdout:
                outcome = Line.model_validate_json(line).outcome
                if not isinstance(outcome, DownloadProgress):
                    return outcome
                self._progress(outcome)
            raise RuntimeError(f"the downloading process ended with status {process.wait()}")

    @contextlib.contextmanager
    def _process(self) -> "Iterator[subprocess.Popen[bytes]]":
        process = subprocess.Popen(
            [sys.executable, "-m", "longshore_runtime.hub.fetch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(self._environment),
            start_new_session=True,
        )
        try:
            with process:
                try:
                    yield process
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
        finally:
            process.wait()

    def _progress(self, progress: DownloadProgress) -> None:
        self.num_bytes = progress.num_bytes
        if time.monotonic() - self._reported_s >= _REPORT_INTERVAL_S:
            self._reported_s = time.monotonic()
            self._on_progress(progress.num_bytes, progress.total_bytes)


def _environment(hub: Hub) -> dict[str, str]:
    """Return settings of the client. Its warnings would put signed addresses into the log."""
    settings = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_VERBOSITY": "error"}
    if hub.endpoint is not None:
        settings["HF_ENDPOINT"] = hub.endpoint.rstrip("/")
    return {**os.environ, **settings}


def _sentence(one: Wanted, failure: Failure, endpoint: str, *, has_token: bool) -> str:
    """Return a sentence with the field, what is wrong, and the fix."""
    at, name, detail = one.at, repr(one.repository), failure.detail
    path = one.repository if one.kind is RepositoryType.MODEL else f"datasets/{one.repository}"
    match failure.trouble:
        case DownloadFailure.REPOSITORY:
            may = "the token of hub.tokenSecret may not see it" if has_token else "it is private"
            fix = "give the token access" if has_token else "set hub.tokenSecret"
            return f"{at}.hub: there is no {one.kind} {name} at {endpoint}, or {may}; correct the name, or {fix}"
        case DownloadFailure.REVISION:
            return f"{at}.revision: {name} has no {one.revision!r}; name a branch, a tag or a commit of it"
        case DownloadFailure.GATED:
            fix = "with the account of the token" if has_token else "and set hub.tokenSecret to a token of that account"
            return f"{at}.hub: {name} is gated; accept its conditions at {endpoint}/{path} {fix}"
        case DownloadFailure.TOKEN:
            whose = "the token of hub.tokenSecret" if has_token else "a request without token"
            fix = "replace it" if has_token else "set it"
            return f"hub.tokenSecret: {endpoint} does not accept {whose} for {name} ({detail}); {fix}"
        case DownloadFailure.UNREACHABLE:
            return (
                f"hub.endpoint: {endpoint} cannot be reached for {name} ({detail}); correct it, let the coordinator's "
                "pod connect to it, or set HF_HUB_OFFLINE=1 there to use what the storage has"
            )
        case DownloadFailure.OFFLINE:
            return (
                f"{at}.hub: {name} at revision {one.revision!r} is not in the storage, and HF_HUB_OFFLINE is set; "
                "remove that from the coordinator's environment, or name a copy with path"
            )
        case DownloadFailure.STORAGE:
            return f"storage: {_CACHE} cannot be used ({detail}); correct or delete what is there"
        case DownloadFailure.NO_ROOM:
            return (
                f"{at}.hub: the volume has no room for {name}: {detail}; enlarge it or delete what it no longer needs"
            )
        case DownloadFailure.FILES:
            return f"{at}.{detail}"
        case DownloadFailure.DAMAGED:
            return (
                f"{at}.hub: {detail} of {name} has another checksum than {endpoint} says; report it to the owner of "
                "that Hub"
            )
