"""A file or directory as a checked tar stream. Both ends run this: the helper pod gets its source as it is.

So: the standard library only, and no dollar sign before a bracket (Kubernetes would take it for a variable).
The first member says how much comes, and another one of its name how much more if files have grown meanwhile; the last
one holds the SHA-256 of every file; a stream without it was cut off.
What arrives is staged next to its destination and renamed into place, so that it is there whole or not at all.
"""

import errno
import fnmatch
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TypedDict

INDEX = ".longshore-index.json"
SUMS = ".longshore-sha256.json"
CHUNK_BYTES = 1 << 20
_DAMAGED = "the copy is damaged: copy it again"
_MAX_NAMES = 8
_MAX_INDEX_BYTES = 1 << 10
_MAX_SUM_BYTES = 80
"""Size of a checksum and of what JSON puts around it and around the name of its file."""
_MAX_ESCAPED_BYTES = 12
"""Size of a character of a name in JSON, at most."""

Progress = Callable[[int, int], None]
"""Called with (bytes so far, bytes in all)."""


class ArchiveError(Exception):
    """The copy cannot be made, in one sentence."""


class CutOff(ArchiveError):
    """The stream ended too early; its sender may know why."""

    def __init__(self) -> None:
        super().__init__("the copy was cut off before its end")


class FileSelection(TypedDict, total=False):
    """Files of a directory, by their names relative to it."""

    match: str
    """Pattern as of a shell, in which `*` also stands for slashes."""
    first: str
    last: str
    """Names in the order of the alphabet, both included."""
    newest: int
    """Number of these files that are taken, from the last on."""


def quiet(done_bytes: int, total_bytes: int) -> None:
    """Ignore progress."""


def pack(
    root: Path,
    out: IO[bytes],
    progress: Progress = quiet,
    choices: Sequence[FileSelection] = (),
    *,
    is_storage_of_jobs: bool = False,
) -> None:
    """Write the file or directory `root` to `out`; with `choices`, only files that one of them names.

    Jobs may write into their storage meanwhile. What is hidden in it is unfinished, and is left out.

    Raises:
        ArchiveError: there is no such path, it holds no (such) file, a link leads nowhere, or a file is deleted
            before its turn comes.
    """
    try:
        _pack(root, out, progress, _chosen(root, _files(root, is_storage_of_jobs), choices))
    except FileNotFoundError as error:
        raise ArchiveError(f"{error.filename} was deleted during the copy: copy it again") from error


def _pack(root: Path, out: IO[bytes], progress: Progress, files: Sequence[tuple[str, Path]]) -> None:
    sizes_bytes = [path.stat().st_size for _, path in files]
    is_file = root.is_file()
    sums: dict[str, str] = {}
    meter = _Meter(progress)
    meter.total_bytes = sum(sizes_bytes)
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        _add_json(tar, INDEX, {"bytes": meter.total_bytes, "isFile": is_file})
        for (name, path), expected_bytes in zip(files, sizes_bytes, strict=True):
            with path.open("rb") as source:
                hashed = _HashedReader(source, meter)
                member = tarfile.TarInfo(name)
                member.size = os.fstat(source.fileno()).st_size
                if member.size != expected_bytes:
                    meter.total_bytes += member.size - expected_bytes
                    _add_json(tar, INDEX, {"bytes": meter.total_bytes, "isFile": is_file})
                tar.addfile(member, hashed)
            sums[name] = hashed.digest.hexdigest()
        _add_json(tar, SUMS, sums)


def unpack(source: IO[bytes], destination: Path, *, force: bool = False, progress: Progress = quiet) -> int:
    """Read what `pack` wrote into `destination`, and return the number of files.

    Raises:
        ArchiveError: the destination exists and `force` is not set, or it is not to be replaced at all, a member would
            leave the destination, the stream was cut off (CutOff) or holds more than it says, a checksum differs or is
            missing, or there is no room. Nothing is left behind then, and what was there is kept.
    """
    _refuse_existing(destination, force)
    _refuse_surroundings(destination)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".longshore-", dir=destination.parent))
    except OSError as error:
        raise ArchiveError(_cannot_write(destination, error)) from error
    try:
        staging.chmod(0o755)
        with tarfile.open(fileobj=source, mode="r|", bufsize=tarfile.RECORDSIZE) as tar:
            is_file, sums = _unpack_members(tar, staging, destination, progress)
        _publish(staging / next(iter(sums)) if is_file else staging, destination)
    except (tarfile.TarError, EOFError) as error:
        raise CutOff from error
    except (ValueError, OverflowError, RecursionError) as error:
        # What tarfile, json and paths raise for names and numbers that no archive of ours has.
        raise ArchiveError(_DAMAGED) from error
    except OSError as error:
        raise ArchiveError(_cannot_write(destination, error)) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return len(sums)


def inside(root: Path, relative: str) -> Path:
    """Return the path `relative` in `root`.

    Raises:
        ArchiveError: it leads out of `root`.
    """
    path = (root / relative).resolve()
    if not path.is_relative_to(root.resolve()):
        raise ArchiveError(f"the path {relative!r} leads out of the storage")
    return path


def sizes(directory: Path) -> dict[str, int]:
    """Return bytes of everything in a directory, by name; what is being written has a hidden name and is left out."""
    if not directory.is_dir():
        return {}
    shown = (path for path in sorted(directory.iterdir()) if not path.name.startswith("."))
    return {path.name: sum(file.stat().st_size for file in _inner(path)) for path in shown}


def _inner(path: Path) -> list[Path]:
    return [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]


def _instead(root: Path, path: Path) -> str:
    """Return what the nearest directory holds in place of a missing `path`."""
    parent = path.parent
    while not parent.is_dir() and parent != root:
        parent = parent.parent
    names = sorted(one.name for one in parent.iterdir() if not one.name.startswith("."))
    where = parent.relative_to(root.resolve()).as_posix() if parent != root.resolve() else "it"
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"; {where} holds {', '.join(names[:_MAX_NAMES])}{more}" if names else ""


def _files(root: Path, is_storage_of_jobs: bool) -> list[tuple[str, Path]]:
    if root.is_file():
        return [(root.name, root)]
    if not root.is_dir():
        raise ArchiveError(f"there is no {root.name!r} in {root.parent}")
    found = sorted(_files_below(root, (), is_storage_of_jobs))
    if not found:
        raise ArchiveError(f"{root} holds no file")
    if broken := next(filter(_is_broken_link, found), None):
        raise ArchiveError(f"{broken} is a link to what does not exist: remove the link")
    return [(path.relative_to(root).as_posix(), path) for path in found]


def _files_below(directory: Path, around: Sequence[Path], is_storage_of_jobs: bool) -> Iterator[Path]:
    """Yield the files of a directory and of those in it, also by links; `around`: the directories around it.

    Jobs hide in their storage what they have not finished, and what they are deleting.
    """
    here = directory.resolve()
    if here in around:
        raise ArchiveError(f"{directory} is a link to a directory around it: remove the link")
    for path in directory.iterdir():
        if is_storage_of_jobs and (path.name.startswith(".") or _is_link_of_tracker(path)):
            continue
        if path.is_dir():
            yield from _files_below(path, (*around, here), is_storage_of_jobs)
        elif path.is_file() or _is_broken_link(path):
            yield path


def _is_broken_link(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


def _is_link_of_tracker(path: Path) -> bool:
    """Return whether it leads to a log of Weights & Biases, which was on the machine of the pod."""
    return _is_broken_link(path) and "wandb" in path.parts


def _chosen(root: Path, files: list[tuple[str, Path]], choices: Sequence[FileSelection]) -> list[tuple[str, Path]]:
    if not choices:
        return files
    names: set[str] = set()
    for choice in choices:
        matching = [
            name
            for name, _ in files
            if fnmatch.fnmatchcase(name, choice["match"]) and choice.get("first", "") <= name
            and ("last" not in choice or name <= choice["last"])
        ]  # fmt: skip
        names.update(matching[-choice["newest"] :] if "newest" in choice else matching)
    if not names:
        raise ArchiveError(f"{root.name} holds none of the files that were asked for")
    return [(name, path) for name, path in files if name in names]


def _unpack_members(
    tar: tarfile.TarFile, staging: Path, destination: Path, progress: Progress
) -> tuple[bool, dict[str, str]]:
    index: dict[str, object] | None = None
    seen: dict[str, str] = {}
    meter = _Meter(progress)
    sums_bytes = _MAX_INDEX_BYTES
    for member in tar:
        content = tar.extractfile(member)
        if content is None:
            raise ArchiveError(f"{member.name!r} is no plain file")
        if member.name == INDEX:
            index = _object(content, _MAX_INDEX_BYTES)
            total_bytes = index.get("bytes")
            if not isinstance(total_bytes, int):
                raise ArchiveError(_DAMAGED)
            if index.get("isFile") and destination.is_dir():
                raise ArchiveError(f"{destination} is a directory, and what comes is one file: name the file to write")
            _require_room(staging, total_bytes - meter.done_bytes)
            meter.total_bytes = total_bytes
        elif index is None:
            raise ArchiveError(_DAMAGED)
        elif member.name == SUMS:
            _compare(_object(content, sums_bytes), seen)
            is_file = bool(index.get("isFile"))
            if is_file and len(seen) != 1:
                raise ArchiveError(_DAMAGED)
            return is_file, seen
        else:
            if member.size > meter.total_bytes - meter.done_bytes:
                raise ArchiveError("the copy holds more than it announced: copy it again")
            sums_bytes += _MAX_SUM_BYTES + _MAX_ESCAPED_BYTES * len(member.name)
            seen[member.name] = _extract(content, _target(staging, member.name), meter)
    raise CutOff


def _extract(content: IO[bytes], target: Path, meter: "_Meter") -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with target.open("xb") as out:
        while chunk := content.read(CHUNK_BYTES):
            out.write(chunk)
            digest.update(chunk)
            meter.add(len(chunk))
    return digest.hexdigest()


def _target(staging: Path, name: str) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ArchiveError(f"{name!r} would leave the destination")
    return staging / path


def _object(content: IO[bytes], max_bytes: int) -> dict[str, object]:
    try:
        value = json.loads(content.read(max_bytes))
    except (ValueError, RecursionError) as error:
        raise ArchiveError(_DAMAGED) from error
    if not isinstance(value, dict):
        raise ArchiveError(_DAMAGED)
    return value


def _require_room(directory: Path, num_bytes: int) -> None:
    free_bytes = shutil.disk_usage(directory).free
    if num_bytes > free_bytes:
        raise ArchiveError(_full(directory.parent, f"{num_bytes:,} bytes are needed and {free_bytes:,} are free"))


def _cannot_write(destination: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        directory = _nearest(destination.parent)
        return _full(directory, f"{shutil.disk_usage(directory).free:,} bytes are free")
    return f"{destination} cannot be written: {error.strerror or error}"


def _nearest(directory: Path) -> Path:
    """Return the directory, or where there is none the first around it."""
    return next(one for one in (directory, *directory.parents) if one.is_dir())


def _full(directory: Path, figures: str) -> str:
    return f"there is no room in {directory}: {figures}; make room, or choose another place"


def _compare(expected: dict[str, object], seen: dict[str, str]) -> None:
    if not seen:
        raise ArchiveError("the copy holds no file, or not a single checksum")
    for name in sorted(expected.keys() | seen.keys()):
        if expected.get(name) != seen.get(name):
            raise ArchiveError(f"the checksum of {name!r} differs: copy it again")


def _publish(staged: Path, destination: Path) -> None:
    """Rename into place; only this removes what was there, and only once that has worked."""
    if not staged.is_dir():
        staged.replace(destination)
        return
    if not destination.exists() and not destination.is_symlink():
        staged.rename(destination)
        return
    aside = Path(tempfile.mkdtemp(prefix=".longshore-", dir=destination.parent))
    before = destination.rename(aside / "before")
    try:
        staged.rename(destination)
    except OSError:
        before.rename(destination)  # Where that fails, too, it is at least still there.
        aside.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _refuse_existing(destination: Path, force: bool) -> None:
    if not force and (destination.exists() or destination.is_symlink()):
        raise ArchiveError(f"{destination} exists already: choose another place, or overwrite it with --force")


def _refuse_surroundings(destination: Path) -> None:
    """Refuse to replace a directory that holds the working or home directory: its other files would be lost."""
    place, home = destination.resolve(), Path(os.environ.get("HOME", "/")).resolve()
    if any(one.is_relative_to(place) for one in (Path.cwd(), home, destination.parent.resolve())):
        raise ArchiveError(f"{destination} holds more than such a copy: name a directory of its own in it")


def _add_json(tar: tarfile.TarFile, name: str, value: object) -> None:
    data = json.dumps(value).encode()
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


class _Meter:
    """Counts bytes and reports their number."""

    def __init__(self, progress: Progress) -> None:
        self.total_bytes = 0
        self.done_bytes = 0
        self._progress = progress

    def add(self, num_bytes: int) -> None:
        self.done_bytes += num_bytes
        self._progress(self.done_bytes, self.total_bytes)


class _HashedReader(io.RawIOBase):
    """Hashes and counts what is read through it."""

    def __init__(self, source: IO[bytes], meter: _Meter) -> None:
        self.digest = hashlib.sha256()
        self._source = source
        self._meter = meter

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self.digest.update(data)
        self._meter.add(len(data))
        return data


def main(arguments: list[str]) -> int:
    """Run a command of the helper pod.

    `send ROOT PATH [CHOICES]` writes an archive to standard output, `receive ROOT PATH [force]` reads one from standard
    input, and `list ROOT PATH` writes what is in a directory as JSON: the bytes of each entry by its name. CHOICES is
    JSON.
    """
    action, root, relative, *options = arguments
    try:
        path = inside(Path(root), relative)
        if action == "send":
            if not path.exists():
                raise ArchiveError(f"there is no {relative!r} in the storage{_instead(Path(root), path)}")
            choices = json.loads(options[0]) if options else ()
            pack(path, sys.stdout.buffer, choices=choices, is_storage_of_jobs=True)
            sys.stdout.buffer.flush()
        elif action == "list":
            sys.stdout.write(json.dumps(sizes(path)))
        else:
            if path == Path(root).resolve():
                raise ArchiveError(f"{relative!r} is the whole storage: name a place in it, such as models/qwen")
            unpack(sys.stdin.buffer, path, force="force" in options)
    except (ArchiveError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
