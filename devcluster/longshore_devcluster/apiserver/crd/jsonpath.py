"""The JSONPath of printer columns and selectable fields."""

import re
from collections.abc import Iterator

from longshore_devcluster.apiserver.schema.node import Json

_STEP = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\]\\])+)        # .member, dots escaped by a backslash
      | \[['"](?P<quoted>[^'"]+)['"]\]         # ['member']
      | \[(?P<index>-?\d+|\*)\]                # [0], [*]
      | \[\?\(@\.(?P<field>[^=!<>()]+?)\s*(?P<op>==|!=)\s*(?P<literal>"[^"]*"|'[^']*'|[^)]+)\)\]  # a filter
    """,
    re.X,
)


class BadPath(Exception):
    """The text is not a JSONPath that we read."""


def steps(path: str) -> list[re.Match[str]]:
    """Return the steps of a path; raises BadPath."""
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    if text and text[0] not in ".[":
        text = f".{text}"
    found, at = [], 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            raise BadPath(path)
        found.append(match)
        at = match.end()
    return found


def find(path: list[re.Match[str]], value: Json) -> Iterator[Json]:
    """Yield the values at a path; nothing where members are missing."""
    if not path:
        yield value
        return
    step, rest = path[0], path[1:]
    name = step["quoted"] or (step["name"] or "").replace("\\.", ".")
    if name:
        if name == "*" and isinstance(value, (dict, list)):
            for member in value.values() if isinstance(value, dict) else value:
                yield from find(rest, member)
        elif isinstance(value, dict) and name in value:
            yield from find(rest, value[name])
    elif isinstance(value, list):
        for item in _items(step, value):
            yield from find(rest, item)


def _items(step: re.Match[str], items: list[Json]) -> list[Json]:
    if step["index"] == "*":
        return items
    if step["index"]:
        index = int(step["index"])
        return [items[index]] if -len(items) <= index < len(items) else []
    wanted = step["literal"].strip().strip("\"'")
    path = steps(step["field"])

    def matches(item: Json) -> bool:
        found = [str(value) if not isinstance(value, bool) else str(value).lower() for value in find(path, item)]
        return (wanted in found) if step["op"] == "==" else (wanted not in found)

    return [item for item in items if matches(item)]
