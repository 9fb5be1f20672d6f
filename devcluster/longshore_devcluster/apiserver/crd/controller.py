"""Keeps the registry in step with the stored CustomResourceDefinitions."""

from collections.abc import Callable

from longshore_devcluster.apiserver.crd.cel import RuleSet
from longshore_devcluster.apiserver.crd.columns import custom_printer
from longshore_devcluster.apiserver.crd.definition import DEFINITIONS, definition_errors
from longshore_devcluster.apiserver.crd.jsonpath import find, steps
from longshore_devcluster.apiserver.crd.structural import structural
from longshore_devcluster.apiserver.crd.version import CustomVersion
from longshore_devcluster.apiserver.errors import ApiError, invalid
from longshore_devcluster.apiserver.objects import Objects
from longshore_devcluster.apiserver.request import DeleteOptions
from longshore_devcluster.apiserver.resources import ITEM_VERBS, Registry, Resource, Subresource, by_name
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.store import Change, copied
from longshore_kube.times import rfc3339

_CLEANUP = "customresourcecleanup.apiextensions.k8s.io"


def custom_resources(definition: Object) -> list[Resource]:
    """Return the resources that a definition serves, one a version."""
    spec = definition["spec"]
    return [_resource(spec, version) for version in spec["versions"] if version.get("served")]


def _resource(spec: Object, version: Object) -> Resource:
    names, namespaced = spec["names"], spec["scope"] == "Namespaced"
    source = (version.get("schema") or {}).get("openAPIV3Schema") or {"type": "object"}
    schema = structural(source, root=True)
    subresources = version.get("subresources") or {}
    described = []
    if "status" in subresources:
        described.append(Subresource("status", names["kind"], ITEM_VERBS))
    selectable = dict(by_name(namespaced))
    for field in version.get("selectableFields") or ():
        selectable[field["jsonPath"].lstrip(".")] = _selected(field["jsonPath"])
    return Resource(
        group=spec["group"],
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        namespaced=namespaced,
        schema=schema,
        printer=custom_printer(version.get("additionalPrinterColumns")),
        list_kind=names.get("listKind") or f"{names['kind']}List",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=tuple(described),
        selectable=selectable,
        custom=CustomVersion(schema, RuleSet(schema)),
    )


def _selected(json_path: str) -> Callable[[Object], str]:
    path = steps(json_path)

    def get(obj: Object) -> str:
        value = next(find(path, obj), "")
        return str(value).lower() if isinstance(value, bool) else str(value)

    return get


class CustomResources:
    """Serves what the definitions say, and ends what they no longer say."""

    def __init__(self, objects: Objects, registry: Registry) -> None:
        self._objects, self._registry = objects, registry

    def start(self) -> None:
        store = self._objects.store
        self._objects.admission.append(self._admit)
        for record in store.items(DEFINITIONS):
            self._serve(record.obj)
        store.listen(DEFINITIONS, self._on_change)
        store.listen("*", self._on_instance_change)

    def _serve(self, definition: Object) -> None:
        spec = definition["spec"]
        self._registry.replace_custom(spec["group"], spec["names"]["plural"], custom_resources(definition))
        self._fill_defaults(f"{spec['names']['plural']}.{spec['group']}")

    def _fill_defaults(self, storage: str) -> None:
        """Read stored objects with the defaults of today's definition; this is no change of theirs."""
        resource, store = self._registry.by_storage(storage), self._objects.store
        if resource is None or resource.custom is None:
            return
        for record in store.items(storage):
            obj = copied(record.obj)
            resource.custom.fill_defaults(obj)
            if obj != record.obj:
                store.show(record, obj)

    def _admit(self, resource: Resource, new: Object, old: Object | None, subresource: str) -> None:
        """Validate a definition; a new one is established at once."""
        if resource.storage != DEFINITIONS:
            return
        errors = definition_errors(new, old)
        if errors:
            raise invalid(resource.kind_ref(new["metadata"]["name"]), errors)
        if subresource == "":
            self._establish(new)

    def _establish(self, definition: Object) -> None:
        spec, status = definition["spec"], definition.setdefault("status", {})
        storage = next(v["name"] for v in spec["versions"] if v.get("storage"))
        status["acceptedNames"] = dict(spec["names"])
        stored = status.get("storedVersions") or []
        status["storedVersions"] = stored if storage in stored else [*stored, storage]
        if not status.get("conditions"):
            now = rfc3339(self._objects.now())
            status["conditions"] = [
                _condition("NamesAccepted", now, "NoConflicts", "no conflicts found"),
                _condition("Established", now, "InitialNamesAccepted", "the initial names have been accepted"),
            ]

    def _on_change(self, change: Change) -> None:
        spec = change.obj["spec"]
        plural, group = spec["names"]["plural"], spec["group"]
        if change.type == "DELETED":
            self._registry.replace_custom(group, plural, [])
            return
        if change.type == "ADDED":
            self._objects.store.begin_history(f"{plural}.{group}")
        self._serve(change.obj)
        if change.obj["metadata"].get("deletionTimestamp"):
            self._clean_up(change.obj)

    def _on_instance_change(self, change: Change) -> None:
        """Remove a terminating definition with its last instance."""
        if change.type != "DELETED":
            return
        resource = self._registry.by_storage(change.key.resource)
        if resource is None or not resource.custom:
            return
        key = self._definitions().key("", f"{resource.plural}.{resource.group}")
        record = self._objects.store.get(key)
        if record and record.obj["metadata"].get("deletionTimestamp"):
            self._finish(record.obj)

    def _definitions(self) -> Resource:
        found = self._registry.find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        assert found is not None
        return found

    def _clean_up(self, definition: Object) -> None:
        """Delete the instances of a definition that is being deleted."""
        if _CLEANUP not in (definition["metadata"].get("finalizers") or ()):
            return
        spec = definition["spec"]
        storage = f"{spec['names']['plural']}.{spec['group']}"
        resource = self._registry.by_storage(storage)
        for record in self._objects.store.items(storage):
            if resource is not None and not record.obj["metadata"].get("deletionTimestamp"):
                try:
                    self._objects.delete(resource, record.key.namespace, record.key.name, DeleteOptions())
                except ApiError as error:
                    if error.code != 404:
                        raise
        self._finish(definition)

    def _finish(self, definition: Object) -> None:
        """Let a definition without instances go."""
        spec = definition["spec"]
        if self._objects.store.items(f"{spec['names']['plural']}.{spec['group']}"):
            return
        resource, name = self._definitions(), definition["metadata"]["name"]
        record = self._objects.store.get(resource.key("", name))
        finalizers = record.obj["metadata"].get("finalizers") or [] if record else []
        if record is None or _CLEANUP not in finalizers:
            return
        obj = copied(record.obj)
        kept = [f for f in finalizers if f != _CLEANUP]
        if kept:
            obj["metadata"]["finalizers"] = kept
            self._objects.store.put(record.key, obj)
        else:
            self._objects.store.remove(record.key)


def _condition(kind: str, now: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message}
