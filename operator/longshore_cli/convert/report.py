"""What a conversion found, for people: on standard error, since the manifest may go to a file or a pipe."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from longshore_cli import format as fmt
from longshore_cli.convert.conversion import Conversion
from longshore_cli.convert.mapping import System

_MANY: Final = 6
_FEW: Final = 3
"""Keys that are shown where more have one reason."""


def lines(found: Conversion, system: System, given: Mapping[str, Any], computed: tuple[str, ...]) -> Iterator[str]:
    """Yield a line for each thing to know."""
    yield (
        f"{fmt.count(len(found.converted), 'key')} of {system.name} converted; "
        f"{fmt.count(len(found.same), 'key')} need no field, since Longshore does the same."
    )
    yield from _left_out(found, given, _switched_off(given) - system.half_switched)
    if found.unknown:
        yield f"Not known as keys of {system.name} {system.version}, and left out:"
        yield from (f"  {key} = {given[key]}{f': {guess}' if guess else ''}" for key, guess in found.unknown.items())
    if computed:
        yield "Not read, since only the program knows the values (add them as key=value):"
        yield from (f"  {one}{_instead(one, found, system)}." for one in computed)
    if found.missing:
        yield "Needed for a job (add it as key=value):"
        yield from (f"  {key}: {reason}." for key, reason in found.prevented.items() if key in found.missing)
    if found.prevented.keys() - found.missing:
        yield "No RLJob can do this:"
        yield from (f"  {key}: {reason}." for key, reason in found.prevented.items() if key not in found.missing)
    if found.prevented:
        return
    if found.to_do:
        yield "Still to do:"
        yield from (f"  {one}" for one in found.to_do)


def _left_out(found: Conversion, given: Mapping[str, Any], sections: set[str]) -> Iterator[str]:
    """Yield what was left out.

    What may change what is learned comes first, then what is switched off, and the rest by reason.
    """
    off = {key: section for key in found.left_out if (section := _section_of(key, sections)) is not None}
    matters = [key for key in found.left_out if key not in off and key not in found.beside_learning]
    if matters:
        yield "Left out, which may change what is learned:"
        yield from (f"  {_shown(key, given)}: {found.left_out[key]}." for key in matters)
    rest = defaultdict(list)
    for key, reason in found.left_out.items():
        if key not in off and key in found.beside_learning:
            rest[reason].append(_shown(key, given))
    if rest or off:
        yield "Left out, which has no part in what is learned:"
        yield from (f"  {_some(keys)}: {reason}." for reason, keys in rest.items())
    if off:
        numbers = Counter(off.values())
        named = (f"{section} ({fmt.count(number, 'key')})" for section, number in numbers.items())
        yield f"  switched off: {', '.join(named)}."


def _switched_off(given: Mapping[str, Any]) -> set[str]:
    """Return sections whose `enable` or `enabled` is false."""
    switches = [key.rpartition(".") for key, value in given.items() if value is False]
    return {section for section, _, name in switches if section and name in ("enable", "enabled")}


def _section_of(key: str, sections: set[str]) -> str | None:
    """Return the outermost of the sections that a key is in."""
    parts = key.split(".")
    paths = (".".join(parts[:depth]) for depth in range(1, len(parts)))
    return next((path for path in paths if path in sections), None)


def _shown(key: str, given: Mapping[str, Any]) -> str:
    return f"{key} = {given[key]}" if key in given else key


def _some(keys: Sequence[str]) -> str:
    """Return all keys, or the first few of many."""
    if len(keys) <= _MANY:
        return ", ".join(keys)
    return f"{', '.join(keys[:_FEW])} and {len(keys) - _FEW} more"


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
