"""Names of fields as people write them: without what pydantic adds for unions, and what a misspelt one is near to."""

import types
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel

_SIMILARITY: Final = 0.75
"""Least similarity, from 0 to 1, of a name that is suggested; `everyStep` and `everySteps` have 0.95."""


def written_path(model: type[BaseModel], location: Sequence[int | str]) -> tuple[int | str, ...]:
    """Return the location of a mistake in a manifest: pydantic also names the types that a value might have had."""
    found, path = list[Any]([model]), list[int | str]()
    for part in location:
        if not any(_is_container(one) for one in found):
            return tuple(path)
        if (tagged := [one for one in found if _is_tagged(one, part)]) and len(found) > 1:
            found = tagged
            continue
        found = [inner for one in found for inner in _inside(one, part)]
        path.append(part)
    return tuple(path)


def near_name(model: type[BaseModel], location: Sequence[int | str]) -> str | None:
    """Return the field that the last part of a location was probably meant to be; None: no name is similar."""
    found: list[Any] = list(_alternatives(model))
    for part in location[:-1]:
        found = [inner for one in found for inner in _inside(one, part)]
    known = {alias.lower(): alias for one in found if _is_model(one) for alias in _fields(one)}
    near = get_close_matches(str(location[-1]).lower(), known, 1, _SIMILARITY)
    return known[near[0]] if near else None


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _alternatives(annotation: Any) -> Iterator[Any]:
    """Yield what a value may be, without unions and what is said about them."""
    if get_origin(annotation) is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for one in get_args(annotation):
            yield from _alternatives(one)
    else:
        yield annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _is_tagged(annotation: Any, tag: int | str) -> bool:
    """Return whether this is the model of a union that pydantic names so."""
    fields = annotation.model_fields if _is_model(annotation) else {}
    return "name" in fields and fields["name"].default == tag


def _is_container(annotation: Any) -> bool:
    return _is_model(annotation) or (get_origin(annotation) or annotation) in (dict, list, tuple)


def _inside(annotation: Any, part: int | str) -> Iterator[Any]:
    """Yield what may be at a key or a place of a value."""
    if _is_model(annotation):
        yield from _alternatives(_fields(annotation).get(str(part)))
        return
    kind, arguments = get_origin(annotation), get_args(annotation)
    if kind is dict:
        yield from _alternatives(arguments[1])
    elif kind in (list, tuple):
        yield from _alternatives(arguments[0])
