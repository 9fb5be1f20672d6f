"""What a conversion found, for people: on standard error, since the manifest may go to a file or a pipe."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from longshore_cli import format as fmt
from longshore_cli.convert.conversion import Conversion
from longshore_cli.convert.mapping import System


def lines(found: Conversion, system: System, given: Mapping[str, Any], computed: tuple[str, ...]) -> Iterator[str]:
    """Yield a line for each thing to know."""
    yield (
        f"{fmt.count(len(found.converted), 'key')} of {system.name} converted; "
        f"{fmt.count(len(found.same), 'key')} need no field, since Longshore does the same."
    )
    if found.left_out:
        yield "Left out:"
        by_reason = defaultdict(list)
        for key, reason in found.left_out.items():
            by_reason[reason].append(f"{key} = {given[key]}" if key in given else key)
        for reason, keys in by_reason.items():
            yield f"  {', '.join(keys)}: {reason}."
    if found.unknown:
        yield f"Not known as keys of {system.name} {system.version}, and left out:"
        yield from (f"  {key} = {given[key]}{f': {guess}' if guess else ''}" for key, guess in found.unknown.items())
    if computed:
        yield "Not read, since only the program knows the values (add them as key=value):"
        yield from (f"  {one}{_instead(one, found, system)}." for one in computed)
    if found.prevented:
        yield "No RLJob can do this:"
        yield from (f"  {key}: {reason}." for key, reason in found.prevented.items())
    elif found.to_do:
        yield "Still to do:"
        yield from (f"  {one}" for one in found.to_do)


def _instead(key: str, found: Conversion, system: System) -> str:
    """Return what an RLJob has in place of a value that cannot be read."""
    defaults = system.defaults()
    if key in defaults:
        return f": {system.name}'s default {defaults[key]} was used"
    entries = [one for one in system.entries if one.matches(key)]
    written = {path: value for one in entries for path in one.fields if (value := _field(found.job, path)) is not None}
    if written:
        return f": it was taken as unset, and {', '.join(f'{path} is {value}' for path, value in written.items())}"
    return ": it was left out" if key.isidentifier() else ""


def _field(job: Any, path: str) -> Any:
    for name in path.split("."):
        job = job.get(name) if isinstance(job, dict) else None
    return job
