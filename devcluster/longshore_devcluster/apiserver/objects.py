"""Create, update and delete: the rules that hold for every kind, between the wire and the store."""

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from longshore_devcluster.apiserver import ownership
from longshore_devcluster.apiserver.builtin.validation import metadata_errors, name_errors
from longshore_devcluster.apiserver.errors import (
    FieldError,
    ObjectRef,
    already_exists,
    bad_request,
    conflict,
    field_invalid,
    field_required,
    forbidden,
    internal,
    invalid,
    not_found,
    stale,
)
from longshore_devcluster.apiserver.ownership import Owner, Owners
from longshore_devcluster.apiserver.request import DeleteOptions, WriteOptions
from longshore_devcluster.apiserver.resources import Resource
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.store import Key, Record, Store, copied
from longshore_devcluster.apiserver.write_rules import (
    add_propagation,
    generation_moves,
    grace_period_s,
    may_go,
    new_finalizer_errors,
    normalize,
    presented,
    restricted,
)
from longshore_kube.times import rfc3339

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: generated names must not spell words
_PROTECTED_NAMESPACES = ("default", "kube-system", "kube-public")
_FIXED_METADATA = (
    "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "namespace",
    "selfLink",
)  # fmt: skip

Admission = Callable[[Resource, Object, "Object | None", str], None]
"""Called with (resource, new, old, subresource) before validation; may change ``new`` or raise ApiError."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """Outcome of a delete: the object's last or current state, and whether it is gone."""

    obj: Object
    gone: bool


class Objects:
    """The store with the API's rules."""

    def __init__(self, store: Store, now: Callable[[], datetime], rng: random.Random) -> None:
        self.store = store
        self.now = now
        self._rng = rng
        self.admission: list[Admission] = []

    # --- reading

    def read(self, resource: Resource, namespace: str, name: str) -> Object:
        """Return an object in the resource's own form, as `presented`. Raises 404."""
        return presented(resource, self._record(resource, namespace, name))

    def _record(self, resource: Resource, namespace: str, name: str) -> Record:
        record = self.store.get(resource.key(namespace, name))
        if record is None:
            raise not_found(resource.ref(name))
        return record

    # --- create

    def create(
        self,
        resource: Resource,
        namespace: str,
        obj: Object,
        options: WriteOptions,
        owners: Owners | None = None,
    ) -> Object:
        """Store a new object and return it. ``obj`` becomes the store's; ``owners`` replaces the computed ones."""
        metadata = obj["metadata"]
        self._name_new(resource, namespace, metadata)
        name = metadata["name"]
        if metadata.get("resourceVersion"):
            raise internal("resourceVersion should not be set on objects to be created")
        for field in ("uid", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"):
            metadata.pop(field, None)
        metadata.pop("resourceVersion", None)
        metadata["uid"] = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        metadata["creationTimestamp"] = rfc3339(self.now())
        if resource.has_status:
            obj.pop("status", None)
        if resource.counts_generation or resource.custom:
            metadata["generation"] = 1
        key = resource.key(namespace, name)
        self._check_namespace(resource, namespace, name)
        normalize(resource, obj)
        for admit in self.admission:
            admit(resource, obj, None, "")
        self._check(resource, obj, None)
        if self.store.get(key) is not None:
            raise already_exists(resource.ref(name))
        ownership.on_create(resource, obj, owners, options.manager, self.now())
        if options.dry_run:
            return obj
        return presented(resource, self.store.put(key, obj))

    def _name_new(self, resource: Resource, namespace: str, metadata: Object) -> None:
        if resource.namespaced:
            if metadata.get("namespace") and metadata["namespace"] != namespace:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
            metadata["namespace"] = namespace
        else:
            metadata.pop("namespace", None)
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                cause = field_required("metadata.name", "name or generateName is required")
                raise invalid(resource.kind_ref(), [cause])
            suffix = "".join(self._rng.choices(_SUFFIX, k=5))
            metadata["name"] = metadata["generateName"][:58] + suffix

    def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        if not resource.namespaced:
            return
        record = self.store.get(Key("namespaces", "", namespace))
        if record is None:
            raise not_found(ObjectRef("", "namespaces", namespace))
        if record.obj["metadata"].get("deletionTimestamp"):
            ref = resource.ref(name)
            error = forbidden(
                ref, f"unable to create new content in namespace {namespace} because it is being terminated"
            )
            error.details = {
                **ref.details,
                "causes": [
                    {
                        "reason": "NamespaceTerminating",
                        "message": f"namespace {namespace} is being terminated",
                        "field": "metadata.namespace",
                    }
                ],
            }
            raise error

    # --- update

    def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        change: Callable[[Object], Object],
        options: WriteOptions,
        subresource: str = "",
        owners: Callable[[], Owners] | None = None,
    ) -> Object:
        """Replace an object by ``change(current)``. A change without effect leaves its version alone."""
        record = self._record(resource, namespace, name)
        current = presented(resource, record)
        new = change(copied(current))
        self._check_identity(resource, name, current, new)
        metadata = new["metadata"]
        reset_managers = metadata.get("managedFields") == []
        stamped = metadata.pop("managedFields", None) or current["metadata"].get("managedFields")
        new = restricted(resource, current, new, subresource)
        self._keep_fixed(current, new)
        old = ownership.without_entries(record.obj)
        normalize(resource, new)
        for admit in self.admission:
            admit(resource, new, old, subresource)
        new["metadata"].pop("managedFields", None)
        counts = (resource.counts_generation or resource.custom) and subresource != "binding"
        if counts and generation_moves(resource, old, new):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        # A binding may set what is fixed for everyone else: the node.
        if subresource != "binding":
            self._check(resource, new, old)
        unchanged = new == old
        before = ownership.entries_of(record.obj)
        if owners is not None:
            ownership.store(new, owners(), before, self.now())
        else:
            claimed = {} if reset_managers else ownership.parse(stamped)
            owner = Owner(options.manager, "Update", resource.group_version, subresource)
            ownership.on_update(resource, old, new, before, claimed, owner, self.now())
        if unchanged and ownership.same_owners(before, ownership.entries_of(new)):
            return presented(resource, record)
        if options.dry_run:
            return new
        if may_go(resource, new):
            return presented(resource, self._remove(resource, record, new))
        return presented(resource, self.store.put(record.key, new))

    def _check_identity(self, resource: Resource, name: str, current: Object, new: Object) -> None:
        metadata = new.setdefault("metadata", {})
        shown = metadata.get("name")
        if shown != name:
            raise bad_request(f"the name of the object ({shown or ''}) does not match the name on the URL ({name})")
        uid = current["metadata"]["uid"]
        if metadata.get("uid") and metadata["uid"] != uid:
            key = f"/registry/{resource.group or 'core'}/{resource.plural}/{metadata.get('namespace', '')}/{name}"
            raise conflict(
                resource.ref(name),
                f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
                f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: {uid}",
            )
        version = metadata.get("resourceVersion")
        if not version and (resource.custom or resource.needs_version_to_update):
            cause = field_invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(resource.ref(name), [cause])
        if version and version != current["metadata"]["resourceVersion"]:
            raise stale(resource.ref(name))

    def _keep_fixed(self, current: Object, new: Object) -> None:
        metadata = new["metadata"]
        for field in (*_FIXED_METADATA, "resourceVersion"):
            if field in current["metadata"]:
                metadata[field] = current["metadata"][field]
            else:
                metadata.pop(field, None)

    # --- validation

    def _check(self, resource: Resource, new: Object, old: Object | None) -> None:
        metadata = new["metadata"]
        errors: list[FieldError] = [] if old else name_errors(resource.kind, metadata["name"])
        errors += metadata_errors(metadata)
        if old is not None and old["metadata"].get("deletionTimestamp"):
            errors += new_finalizer_errors(old, new)
        errors += resource.validate(new, old)
        if resource.custom:
            errors += resource.custom.validate(new, old)
        if errors:
            raise invalid(resource.kind_ref(metadata["name"]), errors)

    # --- delete

    def delete(self, resource: Resource, namespace: str, name: str, options: DeleteOptions) -> Deleted:
        """Delete at once, or mark the object where finalizers or a grace period keep it."""
        record = self._record(resource, namespace, name)
        self._check_preconditions(resource, record, options)
        if resource.storage == "namespaces" and name in _PROTECTED_NAMESPACES:
            raise forbidden(resource.ref(name), "this namespace may not be deleted")
        new = copied(record.obj)
        metadata = new["metadata"]
        add_propagation(metadata, options)
        if resource.storage == "customresourcedefinitions.apiextensions.k8s.io":
            cleanup = "customresourcecleanup.apiextensions.k8s.io"
            metadata["finalizers"] = [*{*(metadata.get("finalizers") or ()), cleanup}]
        grace_s = grace_period_s(resource, new, options)
        if metadata.get("deletionTimestamp"):
            if grace_s >= metadata.get("deletionGracePeriodSeconds", 0) and metadata.get("finalizers") == record.obj[
                "metadata"
            ].get("finalizers"):
                if may_go(resource, new):
                    return self._gone(resource, record, new, options)
                return Deleted(presented(resource, record), gone=False)
            grace_s = min(grace_s, metadata.get("deletionGracePeriodSeconds", 0))
        else:
            if "generation" in metadata:
                metadata["generation"] += 1
            if resource.storage == "namespaces":
                new.setdefault("status", {})["phase"] = "Terminating"
        moment = self.now()
        metadata["deletionTimestamp"] = rfc3339(moment + timedelta(seconds=grace_s))
        metadata["deletionGracePeriodSeconds"] = grace_s
        if may_go(resource, new):
            return self._gone(resource, record, new, options)
        if not options.dry_run:
            record = self.store.put(record.key, new)
        return Deleted(presented(resource, Record(record.key, new, record.version)), gone=False)

    def _gone(self, resource: Resource, record: Record, new: Object, options: DeleteOptions) -> Deleted:
        if not options.dry_run:
            self._remove(resource, record, new)
        shown = record.obj if not new["metadata"].get("deletionTimestamp") else new
        return Deleted(presented(resource, Record(record.key, shown, record.version)), gone=True)

    def _remove(self, resource: Resource, record: Record, final: Object) -> Record:
        """Remove an object whose last write allows it; the answer shows that last write."""
        return Record(record.key, final, self.store.remove(record.key).version)

    def _check_preconditions(self, resource: Resource, record: Record, options: DeleteOptions) -> None:
        metadata = record.obj["metadata"]
        ref = ObjectRef(resource.group, resource.kind if resource.custom else resource.plural, metadata["name"])
        if options.uid and options.uid != metadata["uid"]:
            raise conflict(
                ref,
                f"the UID in the precondition ({options.uid}) does not match the UID in record "
                f"({metadata['uid']}). The object might have been deleted and then recreated",
            )
        if options.resource_version and options.resource_version != metadata["resourceVersion"]:
            raise conflict(
                ref,
                f"the ResourceVersion in the precondition ({options.resource_version}) does not match the "
                f"ResourceVersion in record ({metadata['resourceVersion']}). The object might have been modified",
            )
