"""Label selectors, as objects and as requirements."""

from collections.abc import Mapping
from dataclasses import dataclass

from longshore_kube.resources import Json


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term of a label or node selector."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    @classmethod
    def of(cls, expression: Json) -> "Requirement":
        """Build a requirement from an entry of `matchExpressions` or `matchFields`."""
        return cls(expression["key"], expression["operator"], frozenset(expression.get("values") or ()))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels satisfy it.

        Raises:
            ValueError: Kubernetes does not know the operator.
        """
        value = labels.get(self.key)
        match self.operator:
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Gt" | "Lt":
                return value is not None and self._compare(value)
        raise ValueError(f"unknown selector operator {self.operator!r}")

    def _compare(self, value: str) -> bool:
        try:
            left, right = int(value), int(next(iter(self.values)))
        except (ValueError, StopIteration):
            return False
        return left > right if self.operator == "Gt" else left < right


LabelSelector = tuple[Requirement, ...]


def from_object(selector: Json | None) -> LabelSelector | None:
    """Return the requirements of a `metav1.LabelSelector`; None selects nothing."""
    if selector is None:
        return None
    labels = [Requirement(k, "In", frozenset({v})) for k, v in (selector.get("matchLabels") or {}).items()]
    return (*labels, *map(Requirement.of, selector.get("matchExpressions") or ()))


def selector_matches(selector: Json | None, labels: Mapping[str, str] | None) -> bool:
    """Return whether labels satisfy a `metav1.LabelSelector`.

    A missing selector matches nothing, an empty one everything.
    """
    requirements = from_object(selector)
    return requirements is not None and all(requirement.matches(labels or {}) for requirement in requirements)
