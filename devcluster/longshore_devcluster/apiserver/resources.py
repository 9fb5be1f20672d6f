"""What the server serves: resource descriptions and their registry. Differences between kinds are data, here."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from longshore_devcluster.apiserver.errors import FieldError, ObjectRef
from longshore_devcluster.apiserver.schema.node import Json, Object, Schema
from longshore_devcluster.apiserver.store import Key

if TYPE_CHECKING:
    from longshore_devcluster.apiserver.crd.version import CustomVersion

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
ITEM_VERBS = ("get", "patch", "update")


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str = "string"
    description: str = ""
    priority: int = 0
    format: str = ""


@dataclass(frozen=True, slots=True)
class Printer:
    """Columns of a Table and the cells of one row (given the object and the present)."""

    columns: tuple[Column, ...]
    cells: Callable[[Object, datetime], list[Json]]


@dataclass(frozen=True, slots=True)
class Subresource:
    name: str
    kind: str
    verbs: tuple[str, ...]
    group: str = ""
    version: str = ""


def _name_of(obj: Object) -> str:
    return str(obj["metadata"].get("name", ""))


def _namespace_of(obj: Object) -> str:
    return str(obj["metadata"].get("namespace", ""))


def by_name(namespaced: bool) -> dict[str, Callable[[Object], str]]:
    getters: dict[str, Callable[[Object], str]] = {"metadata.name": _name_of}
    return {**getters, "metadata.namespace": _namespace_of} if namespaced else getters


def _nothing(obj: Object) -> None:
    """Fill in no defaults."""


def _valid(new: Object, old: Object | None) -> list[FieldError]:
    return []


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource in one group and version."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool
    schema: Schema
    printer: Printer
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[Subresource, ...] = ()
    selectable: Mapping[str, Callable[[Object], str]] = field(default_factory=dict)
    fill_defaults: Callable[[Object], None] = _nothing
    validate: Callable[[Object, Object | None], list[FieldError]] = _valid
    counts_generation: bool = False
    needs_version_to_update: bool = False
    creates_on_update: bool = False
    delete_answers_object: bool = False
    custom: "CustomVersion | None" = None

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def storage(self) -> str:
        """The resource's name in the store, ``plural.group``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def has_status(self) -> bool:
        return any(sub.name == "status" for sub in self.subresources)

    def subresource(self, name: str) -> Subresource | None:
        return next((sub for sub in self.subresources if sub.name == name), None)

    def key(self, namespace: str, name: str) -> Key:
        return Key(self.storage, namespace if self.namespaced else "", name)

    def ref(self, name: str = "") -> ObjectRef:
        return ObjectRef(self.group, self.plural, name)

    def kind_ref(self, name: str = "") -> ObjectRef:
        return ObjectRef(self.group, self.kind, name)


class Registry:
    """The resources being served, built-in and custom."""

    def __init__(self, builtin: Iterable[Resource]) -> None:
        self._resources: dict[tuple[str, str, str], Resource] = {}
        self._builtin_groups: dict[str, None] = {}
        self.changes = 0
        for resource in builtin:
            self._resources[resource.group, resource.version, resource.plural] = resource
            self._builtin_groups[resource.group] = None

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        return self._resources.get((group, version, plural))

    def by_storage(self, storage: str) -> Resource | None:
        """Return a resource that reads and writes the given stored objects."""
        return next((r for r in self._resources.values() if r.storage == storage and "get" in r.verbs), None)

    def all(self) -> list[Resource]:
        return list(self._resources.values())

    def is_builtin_group(self, group: str) -> bool:
        return group in self._builtin_groups

    def replace_custom(self, group: str, plural: str, resources: Iterable[Resource]) -> None:
        """Serve exactly ``resources`` for a custom ``plural.group`` from now on."""
        kept = {k: r for k, r in self._resources.items() if not (r.custom and k[0] == group and k[2] == plural)}
        self._resources = {**kept, **{(r.group, r.version, r.plural): r for r in resources}}
        self.changes += 1
