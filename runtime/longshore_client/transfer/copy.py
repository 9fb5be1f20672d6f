"""Copy between this machine and a claim: make the helper pod, stream, verify, delete the pod."""

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

from longshore_client.errors import ClientError
from longshore_client.kube import Kube
from longshore_client.plain import plain
from longshore_client.transfer import archive, pod
from longshore_client.transfer.archive import ArchiveError, CutOff, FileSelection, Progress, quiet
from longshore_client.transfer.channel import FRAME_BYTES, Channel, Reader, Writer
from longshore_kube.errors import ApiError
from longshore_kube.resources import PODS, Json

POD_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True)
class StorageClaim:
    """A storage claim, and what is needed to enter it."""

    name: str
    helper: pod.HelperOptions
    job: Json | None = None


def fetch(
    kube: Kube,
    claim: StorageClaim,
    path: str,
    destination: Path,
    *,
    force: bool,
    progress: Progress = quiet,
    choices: Sequence[FileSelection] = (),
) -> int:
    """Copy `path` of the claim to this machine and return the number of files; with `choices`, only files of these.

    Raises:
        ClientError: one sentence on what is in the way; nothing is left behind then.
    """
    if not force and destination.exists():
        raise ClientError(f"{destination} exists already.", "Choose another place, or overwrite it with --force.")
    options = [json.dumps(choices)] if choices else []
    with _channel(kube, claim, pod.archive_command("send", path, *options), read_only=True) as channel:
        try:
            source = io.BufferedReader(Reader(channel), FRAME_BYTES)
            num_files = archive.unpack(source, destination, force=force, progress=progress)
        except CutOff as error:
            # When the sender failed, its own sentence says more than the stream that broke off.
            channel.finish()
            raise ClientError(f"The copy failed: {error}") from error
        except ArchiveError as error:
            # The sender still sends, and all of it would have to come first.
            raise ClientError(f"The copy failed: {error}") from error
        channel.finish()
        return num_files


def listing(kube: Kube, claim: StorageClaim, path: str) -> dict[str, int]:
    """Return bytes of everything in a directory of the claim, by name; empty where there is no such directory.

    Raises:
        ClientError: one sentence on what is in the way.
    """
    text = ask(kube, claim, pod.archive_command("list", path))
    try:
        found = json.loads(text)
        return {plain(str(name)): int(num_bytes) for name, num_bytes in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ClientError("The helper pod answers with what is no list.", "Try it again.") from error


def ask(kube: Kube, claim: StorageClaim, command: list[str], line: bytes = b"", what: str = "copy") -> bytes:
    """Run a program in a pod that mounts the claim, which it cannot write, give it a line, and return what it says.

    Raises:
        ClientError: one sentence on what is in the way.
    """
    with _channel(kube, claim, command, read_only=True, what=what) as channel:
        if line:
            channel.send(line)
        answer = b"".join(iter(channel.receive, b""))
        channel.finish()
    return answer


def put(kube: Kube, claim: StorageClaim, source: Path, path: str, *, force: bool, progress: Progress = quiet) -> None:
    """Copy a file or directory of this machine to `path` in the claim.

    Raises:
        ClientError: one sentence on what is in the way; nothing is left behind then.
    """
    if not source.exists():
        raise ClientError(f"There is no {source} on this machine.")
    options = ["force"] if force else []
    with _channel(kube, claim, pod.archive_command("receive", path, *options), read_only=False) as channel:
        try:
            archive.pack(source, cast(IO[bytes], Writer(channel)), progress)
        except (ArchiveError, OSError) as error:
            raise ClientError(f"The copy failed: {error}") from error
        channel.finish()


@contextmanager
def _channel(
    kube: Kube, claim: StorageClaim, command: list[str], *, read_only: bool, what: str = "copy"
) -> Iterator[Channel]:
    manifest = pod.helper_pod(claim.name, claim.helper, read_only=read_only, job=claim.job)
    pods = PODS.path(kube.namespace)
    made = kube.request("POST", pods, manifest)
    name = made["metadata"]["name"]
    try:
        _wait_running(kube, pods, made)
        channel = Channel(kube, name, pod.CONTAINER, command, what)
        try:
            yield channel
        finally:
            channel.close()
    finally:
        _delete(kube, f"{pods}/{name}")


def _delete(kube: Kube, path: str) -> None:
    try:
        kube.request("DELETE", path, {"gracePeriodSeconds": 0})
    except ApiError as error:
        if not error.not_found:
            raise


def _wait_running(kube: Kube, pods: str, made: Json) -> None:
    name, reason = made["metadata"]["name"], "the cluster did not say why"
    for kind, item in kube.watch(pods, f"metadata.name={name}", known=[made], timeout_s=POD_TIMEOUT_S):
        if kind == "DELETED":
            reason = "somebody deleted it"
            break
        reason = pod.trouble(item) or reason
        match item["status"].get("phase"):
            case "Running":
                return
            case "Failed" | "Succeeded":
                break
    raise ClientError(
        f"The helper pod {name} does not run: {reason}.",
        "It needs the claim, and an image with Python (choose one with --image).",
    )
