"""Directories whose whole content changes at once, as ConfigMap and Secret volumes do."""

import itertools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class File:
    """Content and permission bits of one file."""

    data: bytes
    mode: int = 0o644


def publish(directory: Path, files: dict[str, File]) -> bool:
    """Make `directory` show exactly these files (by relative path); whether anything changed.

    Readers see the old set or the new one, never a mixture: the visible names link through `..data`, which is
    replaced in one step.
    """
    directory.mkdir(parents=True, exist_ok=True)
    data_link = directory / "..data"
    if data_link.is_symlink() and _content(data_link) == files:
        return False
    fresh = next(path for n in itertools.count(1) if not (path := directory / f"..{n}").exists())
    fresh.mkdir()
    for name, file in files.items():
        path = fresh / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(file.mode)
    old = data_link.readlink() if data_link.is_symlink() else None
    _link(data_link, fresh.name)
    top_level = {Path(name).parts[0] for name in files}
    for entry in directory.iterdir():
        if not entry.name.startswith("..") and entry.name not in top_level:
            entry.unlink()
    for name in top_level:
        if not (directory / name).is_symlink():
            _link(directory / name, f"..data/{name}")
    if old is not None:
        shutil.rmtree(directory / old)
    return True


def replace_file(path: Path, text: str, mode: int) -> None:
    """Write a whole file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)


def _content(directory: Path) -> dict[str, File]:
    # Follows the `..data` link itself, but nothing below it links anywhere.
    found = {}
    for root, _, names in os.walk(directory):
        for name in names:
            path = Path(root) / name
            relative = str(path.relative_to(directory))
            found[relative] = File(path.read_bytes(), path.stat().st_mode & 0o7777)
    return found


def _link(path: Path, target: str) -> None:
    fresh = path.with_name("..link")
    fresh.symlink_to(target)
    fresh.replace(path)
