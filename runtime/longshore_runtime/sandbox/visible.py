"""The host's files that programs see: those of Python, and only packages that were requested."""

import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True)
class ShownPaths:
    """The paths that exist for a program; all are absolute, without `.` and `..`."""

    named: frozenset[str]
    """Paths that programs may name, with links; all that is shown lies below them, and more."""
    real: frozenset[str]
    """Paths that are shown, with everything below them."""
    ancestors: frozenset[str]
    """Directories above those, by both names: they are seen, but not their content."""

    def may_have(self, path: str) -> bool:
        """Return whether this path, which may contain links, may exist for a program."""
        return path in self.ancestors or _is_below(path, self.named)

    def has(self, path: str) -> bool:
        """Return whether this path, which contains no links, is shown with its content."""
        return _is_below(path, self.real)

    def is_ancestor(self, path: str) -> bool:
        """Return whether this path, which contains no links, is seen without its content."""
        return path in self.ancestors and not self.has(path)


def shown_paths(import_paths: Sequence[str]) -> ShownPaths:
    """Return what exists for programs without a root directory of their own."""
    real = frozenset([*python_paths_but_packages(import_paths), *DEVICES])
    named = frozenset([*python_paths(import_paths), *DEVICES]) | real
    ancestors = frozenset(str(parent) for path in named for parent in PurePosixPath(path).parents)
    return ShownPaths(named, real, ancestors)


def python_paths(import_paths: Sequence[str]) -> list[str]:
    """Return what Python needs to see: itself, its library, shared libraries, time zones, and `import_paths`."""
    wanted = [
        os.path.realpath(sys.executable),
        f"{sys.base_prefix}/lib",
        f"{sys.base_exec_prefix}/lib",
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
        "/etc/ld.so.cache",
        "/usr/share/zoneinfo",
        *import_paths,
    ]
    return [path for path in dict.fromkeys(wanted) if Path(path).exists()]


def package_paths(import_paths: Sequence[str]) -> list[str]:
    """Return packages installed within the library, which are not shown: rewards and data may be among them."""
    found = {sysconfig.get_path(name) for name in ("purelib", "platlib")} | {"/usr/lib/python3/dist-packages"}
    return [
        path
        for path in sorted(found)
        if Path(path).is_dir() and not any(Path(wanted).is_relative_to(path) for wanted in import_paths)
    ]


def python_paths_but_packages(import_paths: Sequence[str]) -> list[str]:
    """Return `python_paths` without `package_paths`; directories with packages are replaced by what else they hold."""
    hidden = {os.path.realpath(path) for path in package_paths(import_paths)}
    return [shown for path in python_paths(import_paths) for shown in _without(os.path.realpath(path), hidden)]


def _without(path: str, hidden: set[str]) -> Iterator[str]:
    if path in hidden:
        return
    if any(Path(other).is_relative_to(path) for other in hidden):
        for child in Path(path).iterdir():
            yield from _without(str(child), hidden)
    else:
        yield path


def _is_below(path: str, places: frozenset[str]) -> bool:
    """Return whether this is one of the places, or lies below one."""
    while path not in places:
        above = os.path.dirname(path)  # noqa: PTH120 - for every call of every program
        if above == path:
            return False
        path = above
    return True
