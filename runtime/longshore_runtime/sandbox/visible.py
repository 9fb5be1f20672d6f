"""The host's files that programs see: those of Python, and only packages that were requested."""

import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path


def python_paths(import_paths: Sequence[str]) -> list[str]:
    """What Python needs to see: itself, its library, shared libraries, time zones, and `import_paths`."""
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
    """Packages installed within the library: rewards and their data may be among them, so they are not shown."""
    found = {sysconfig.get_path(name) for name in ("purelib", "platlib")} | {"/usr/lib/python3/dist-packages"}
    return [
        path
        for path in sorted(found)
        if Path(path).is_dir() and not any(Path(wanted).is_relative_to(path) for wanted in import_paths)
    ]


def python_paths_but_packages(import_paths: Sequence[str]) -> list[str]:
    """`python_paths` without `package_paths`: directories that hold such are replaced by what else is in them."""
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
