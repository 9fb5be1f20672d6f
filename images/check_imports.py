"""Import what an image is to run, so that an image that lacks something is never finished."""

import importlib
import pkgutil
import sys
from collections.abc import Iterable, Iterator


def modules(name: str) -> Iterator[str]:
    """Yield a module, or of `package.*` every module, except programs for `python -m`, which run when imported."""
    package = name.removesuffix(".*")
    yield package
    if package != name:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not found.name.endswith(".__main__"):
                yield found.name


def main(names: Iterable[str]) -> None:
    """Import them all."""
    found = [module for name in names for module in modules(name)]
    for module in found:
        importlib.import_module(module)
    sys.stdout.write(f"{len(found)} modules can be imported\n")


if __name__ == "__main__":
    main(sys.argv[1:])
