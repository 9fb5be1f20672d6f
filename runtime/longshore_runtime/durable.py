"""Making files survive the loss of their machine."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Have a file's content, or a directory's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """The same for a directory with everything in it."""
    for path in [*root.rglob("*"), root]:
        sync(path)
