"""YAML as kubectl reads it, where PyYAML differs: dates, times and numbers. Unlike kubectl, it takes no key twice."""

import math
import re
from typing import Any, Final

import yaml

_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"
_INT: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"
_MAX_PLAIN: Final = 1e21
"""Below it, kubectl writes a float without a fraction as an integer."""
_MERGE: Final = "tag:yaml.org,2002:merge"
_INT_PATTERN: Final = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$")
_FLOAT_PATTERN: Final = re.compile(
    r"(?:[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)


class RepeatedKey(yaml.YAMLError):
    """A mapping has a key twice, of which kubectl would take the last without a word."""


class ManifestLoader(yaml.SafeLoader):
    """Dates and times are text and numbers need no dot, as kubectl reads them. Raises RepeatedKey."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_TIMESTAMP, _INT, _FLOAT)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse repeated keys here, where what `<<` merges is not in the mapping yet."""
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                where = "" if lines[name] == line else f", after line {lines[name]}"
                raise RepeatedKey(f"line {line} has the key {key.value} again{where}")
            lines[name] = line
        return node


def _number_or_text(loader: ManifestLoader, node: yaml.ScalarNode) -> float | str:
    """Return a number, as 1000 for 1e3, or the text of one beyond all numbers, such as the hash 12e4567."""
    number = loader.construct_yaml_float(node)
    if math.isinf(number) and not node.value.lower().endswith("inf"):
        return str(node.value)
    return int(number) if number.is_integer() and abs(number) < _MAX_PLAIN else number


ManifestLoader.add_implicit_resolver(_INT, _INT_PATTERN, list("-+0123456789"))
ManifestLoader.add_implicit_resolver(_FLOAT, _FLOAT_PATTERN, list("-+0123456789."))
ManifestLoader.add_constructor(_FLOAT, _number_or_text)
