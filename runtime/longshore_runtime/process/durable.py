"""Make files survive the loss of their machine, give them their modes, and tell when a disk is full."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_SIGNS: Final = ("No space left on device", "Disk quota exceeded", "(os error 28)", "(os error 122)")
"""Texts of an error for a full disk in the messages of libraries and of Ray."""
_WRITER_FAILED: Final = ("PytorchStreamWriter failed", "file write failed", "inline_container.cc")
"""Texts of torch's errors for a failed write, which do not say why: the room on the disk tells."""
_NEARLY_NOTHING_BYTES: Final = 64 << 20


def sync(path: Path) -> None:
    """Flush a file's content, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Flush a directory and everything in it to the disk."""
    for path in [*root.rglob("*"), root]:
        sync(path)


def apply_umask(root: Path) -> None:
    """Give a directory of this process, and everything in it, the modes that its umask leaves to new files.

    Libraries that write a temporary file and rename it, such as safetensors 0.8, leave its mode, which is 0600. Bits
    that a volume sets, such as that of the group, and execution stay; files of other users are left to their owners.
    """
    mask = _umask()
    for path in [*root.rglob("*"), root]:
        found = path.stat()
        wanted = 0o777 if path.is_dir() else 0o666 | found.st_mode & 0o111
        mode = found.st_mode & 0o7000 | wanted & ~mask
        if found.st_uid == os.geteuid() and mode != found.st_mode & 0o7777:
            path.chmod(mode)


def _umask() -> int:
    """Return the umask of this process. `os.umask` would change it, also for other threads."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(value, 8) for name, _, value in (line.partition(":") for line in lines) if name == "Umask")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all, in a directory that need not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_bytes(content)
    # A rename may reach the disk before the content does; syncing first rules out an incomplete file.
    sync(unfinished)
    unfinished.replace(path)


def is_no_room(error: BaseException, directory: Path) -> bool:
    """Return whether a write to `directory` failed because the disk is full, no matter who wraps the error."""
    return any(
        _says_no_room(one)
        or (any(sign in str(one) for sign in _WRITER_FAILED) and free_bytes(directory) < _NEARLY_NOTHING_BYTES)
        for one in _causes(error)
    )


def is_volume_full(error: BaseException, volume: Path) -> bool:
    """Return whether an error of unknown origin says that this volume is full, and not another disk or the kernel."""
    causes = list(_causes(error))
    if not is_no_room(error, volume):
        return False
    if any(isinstance(one, OSError) and one.errno == errno.EDQUOT for one in causes):
        return True
    names = [one.filename for one in causes if isinstance(one, OSError) and one.filename is not None]
    if names:
        return any(Path(os.fsdecode(name)).is_relative_to(volume) for name in names if not isinstance(name, int))
    return any(str(volume) in str(one) for one in causes) or free_bytes(volume) < _NEARLY_NOTHING_BYTES


def _says_no_room(error: BaseException) -> bool:
    has_number = isinstance(error, OSError) and error.errno in _NO_ROOM
    return has_number or any(sign in str(error) for sign in _SIGNS)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and those that it was raised from, by Python or by Ray."""
    seen: set[int] = set()
    causes: list[BaseException] = [error]
    while causes:
        one = causes.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        further = (one.__cause__, one.__context__, getattr(one, "cause", None))
        causes += [cause for cause in further if isinstance(cause, BaseException)]


def free_bytes(directory: Path) -> int:
    """Return the free bytes on the disk of a directory that may not exist yet."""
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free


def tree_bytes(root: Path) -> int:
    """Return the bytes of everything in a directory; others may write there, and remove files."""
    num_bytes = 0
    for directory, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                num_bytes += (Path(directory) / name).lstat().st_size
    return num_bytes


def no_room(path: Path, needed_bytes: int | None = None) -> str:
    """Return the sentence for a disk that is full."""
    needs = "" if needed_bytes is None else f" needs {needed_bytes:,} bytes, and"
    return (
        f"storage: the volume is full: {path}{needs or ' cannot be written,'} {free_bytes(path):,} bytes are free; "
        "enlarge the volume, delete old outputs in it, or lower checkpoint.keep"
    )
