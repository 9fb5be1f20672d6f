"""A configuration as an RLJob: what every key became, what was left out and why, or which key prevents a job."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from longshore.api import names
from longshore.api.mistakes import mistakes
from longshore.api.rljob import RLJob
from longshore.api.spec import RLJobSpec
from longshore_cli.convert import places
from longshore_cli.convert.mapping import EntryOutcome, Fields, ForeignSettings, Missing, Refused, System

_SIMILAR: Final = 0.75
"""Unknown keys that are as alike to a known one are probably misspelt."""


@dataclass(frozen=True)
class Conversion:
    """What came of a configuration."""

    job: dict[str, Any] | None
    """The manifest; None where something prevents it."""
    converted: Mapping[str, tuple[str, ...]]
    """Keys, and the fields that they decide."""
    same: tuple[str, ...]
    """Keys whose values need no field, since Longshore does the same."""
    left_out: Mapping[str, str]
    """Keys, and why."""
    unknown: Mapping[str, str]
    """Keys that are not known, and what they may be meant to be."""
    prevented: Mapping[str, str]
    """Keys that no RLJob can follow, and why."""
    to_do: tuple[str, ...] = ()
    """What is left for a person."""
    beside_learning: frozenset[str] = frozenset()
    """Keys among those left out that have no part in what is learned."""
    missing: frozenset[str] = frozenset()
    """Keys among those that prevent a job which only need a value."""


@dataclass
class _Findings:
    fields: Fields = field(default_factory=dict)
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields, and the keys that decided them."""
    converted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    """Keys of entries that nothing prevented."""
    same: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    prevented: dict[str, str] = field(default_factory=dict)
    to_do: list[str] = field(default_factory=list)
    beside_learning: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)


def convert(system: System, given: Mapping[str, Any], fixed: Fields) -> Conversion:
    """Return the RLJob of a configuration. `fixed`: fields that no key of it can decide, and that win."""
    found = _Findings(dict(system.always))
    settings = ForeignSettings(given, system.defaults())
    for one in system.entries:
        keys = tuple(key for key in given if one.matches(key))
        try:
            outcome = one.convert(settings)
        except Refused as refused:
            found.prevented[refused.key] = refused.reason
            found.missing |= {refused.key} if isinstance(refused, Missing) else set()
            continue
        except OverflowError:
            found.prevented[one.keys[0]] = f"{', '.join(keys)} hold a number that is too large"
            continue
        _take(found, outcome, keys, one.keys)
    _sort_the_rest(system, settings, found)
    found.fields |= fixed
    job = None if found.prevented else _checked(found, system)
    return Conversion(
        job,
        found.converted,
        tuple(found.same),
        found.left_out,
        found.unknown,
        found.prevented,
        tuple(places.with_claim(line, fixed["spec.storage.claimName"]) for line in dict.fromkeys(found.to_do)),
        frozenset(found.beside_learning),
        frozenset(found.missing),
    )


def _take(found: _Findings, outcome: EntryOutcome, keys: tuple[str, ...], all_keys: tuple[str, ...]) -> None:
    found.fields |= outcome.fields
    found.sources |= dict.fromkeys(outcome.fields, keys or all_keys)
    found.to_do += outcome.to_do
    found.left_out |= outcome.lost
    found.beside_learning |= outcome.beside_learning
    found.taken |= set(keys)
    for key in keys:
        if outcome.fields and key not in outcome.lost:
            found.converted[key] = (*found.converted.get(key, ()), *outcome.fields)


def _sort_the_rest(system: System, settings: ForeignSettings, found: _Findings) -> None:
    """Sort keys that decide no field, and defaults of the other system that have none."""
    given = settings.given
    for key in given:
        if key in found.converted or key in found.left_out:
            continue
        if any(one.matches(key) for one in system.entries):
            found.same += [key] if key in found.taken else []
            continue
        about, value = next((one for one in system.ignored if one.matches(key)), None), settings.plain(key)
        if about is None:
            found.unknown[key] = _guess(key, system)
        elif value is None or any(value is one or (value == one and type(value) is type(one)) for one in about.neutral):
            found.same.append(key)
        else:
            found.left_out[key] = about.reason
            if not about.matters:
                found.beside_learning.add(key)
    for one in system.ignored:
        if one.default is not None and not any(one.matches(key) for key in given):
            found.left_out[f"{one.keys[0]} = {one.default} (by default)"] = one.reason


def _guess(key: str, system: System) -> str:
    section, _, name = key.rpartition(".")
    moved = [one for one in system.known_keys() if one.startswith(f"{section}.") and one.endswith(f".{name}")]
    if section and moved:
        return f"did you mean {moved[0]}?"
    likeness = {one: _likeness(key, one) for one in system.known_keys() if "*" not in one}
    close = max(likeness, key=likeness.__getitem__)
    return f"did you mean {close}?" if likeness[close] >= _SIMILAR else ""


def _likeness(key: str, known: str) -> float:
    """Return how alike two keys are, from 0 to 1.

    The less similar of section and name counts, so that neither alone makes keys alike.
    """
    (section, _, name), (other_section, _, other_name) = key.rpartition("."), known.rpartition(".")
    pairs = ((section, other_section), (name, other_name))
    return min(difflib.SequenceMatcher(None, mine, other).ratio() for mine, other in pairs)


def _checked(found: _Findings, system: System) -> dict[str, Any] | None:
    """Return the manifest, if it passes validation; else the keys that prevent it are noted."""
    nested = _nested(found.fields)
    sections = [str(field.alias) for field in RLJobSpec.model_fields.values()]
    spec = dict(sorted(nested["spec"].items(), key=lambda section: sections.index(section[0])))
    manifest = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": nested["metadata"], "spec": spec}
    try:
        # As JSON: the API server does not turn texts into numbers either.
        RLJob.model_validate_json(json.dumps(manifest, default=str), strict=True)
    except ValidationError as error:
        for path, reason in mistakes(error):
            found.prevented.setdefault(_key_of(path, found, system), reason)
        return None
    return manifest


def _key_of(path: str, found: _Findings, system: System) -> str:
    """Return the key that decided a field, or that could have done so; the field itself where there is none.

    Of several keys, it is the one whose name is most like the field's.
    """
    deciding = [keys for field, keys in found.sources.items() if _overlap(path, field)]
    deciding += [one.keys for one in system.entries if any(_overlap(path, field) for field in one.fields)]
    name = path.rpartition(".")[2].lower()
    return max(deciding[0], key=lambda key: _alike(name, key), default=path) if deciding else path


def _alike(name: str, key: str) -> float:
    own = key.rpartition(".")[2].replace("_", "").lower()
    return difflib.SequenceMatcher(None, name, own).ratio()


def _overlap(path: str, field: str) -> bool:
    return path == field or path.startswith(f"{field}.") or field.startswith(f"{path}.")


def _nested(fields: Fields) -> dict[str, Any]:
    manifest: dict[str, Any] = {}
    for path, value in fields.items():
        if value is None:
            continue
        *parents, last = path.split(".")
        inner = manifest
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return manifest
