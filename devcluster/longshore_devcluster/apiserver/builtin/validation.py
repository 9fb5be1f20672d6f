"""Validation of the built-in resources: the rules that users meet."""

import re
from collections.abc import Callable

import orjson

from longshore_devcluster.apiserver.errors import (
    FieldError,
    field_forbidden,
    field_invalid,
    field_invalid_text,
    field_not_supported,
    field_required,
    field_too_long,
)
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.selectors import matches_labels
from longshore_devcluster.client.selectors import from_object

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    f"start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    rf"'{_LABEL}(\.{_LABEL})*')"
)
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and "
    "end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    f"'{_LABEL}')"
)
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_MAX_DATA_BYTES = 1 << 20
_POD_UPDATE_RULE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n"
)


def name_errors(kind: str, name: str) -> list[FieldError]:
    """Return the errors of ``metadata.name``."""
    if kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
        if "/" in name or "%" in name:
            return [field_invalid("metadata.name", name, "may not contain '/' or '%'")]
        return []
    label_only = kind in ("Namespace", "Service")
    pattern, rule, limit = (_LABEL, _LABEL_RULE, 63) if label_only else (_SUBDOMAIN, _SUBDOMAIN_RULE, 253)
    errors = [field_too_long("metadata.name", limit)] if len(name) > limit else []
    if not re.fullmatch(pattern, name):
        errors.append(field_invalid("metadata.name", name, rule))
    return errors


def metadata_errors(metadata: Object) -> list[FieldError]:
    """Return the errors of labels and owner references."""
    errors = []
    for key, value in (metadata.get("labels") or {}).items():
        if value and (len(value) > 63 or not _QUALIFIED.fullmatch(value)):
            rule = (
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
                "and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or "
                "'12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            )
            errors.append(field_invalid("metadata.labels", value, rule))
        if not _QUALIFIED.fullmatch(key.rsplit("/", 1)[-1]):
            rule = "name part must consist of alphanumeric characters, '-', '_' or '.'"
            errors.append(field_invalid("metadata.labels", key, rule))
    errors += _owner_errors(metadata.get("ownerReferences") or [])
    return errors


def _owner_errors(owners: list[Object]) -> list[FieldError]:
    field, errors = "metadata.ownerReferences", []
    for index, owner in enumerate(owners):
        errors += [
            field_required(f"{field}[{index}].{name}", "must not be empty")
            for name in ("apiVersion", "kind", "name", "uid")
            if not owner.get(name)
        ]
    controllers = [owner for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        first, second = (f"{o['kind']}/{o['name']}" for o in controllers[:2])
        rule = (
            f'Only one reference can have Controller set to true. Found "true" in references for {first} and {second}'
        )
        keys = ("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")
        errors.append(field_invalid_text(field, _in_order(owners, keys), rule))
    return errors


def _in_order(objects: list[Object], keys: tuple[str, ...]) -> str:
    return orjson.dumps([{k: o[k] for k in keys if k in o} for o in objects]).decode()


def _pod_spec_errors(spec: Object, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    containers = spec.get("containers") or []
    if not containers:
        errors.append(field_required(f"{path}.containers"))
    volumes = {v.get("name") for v in spec.get("volumes") or ()}
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            errors += _container_errors(container, f"{path}.{group}[{index}]", volumes)
    policy = spec.get("restartPolicy", "Always")
    if policy not in ("Always", "OnFailure", "Never"):
        errors.append(field_not_supported(f"{path}.restartPolicy", policy, ("Always", "OnFailure", "Never")))
    return errors


def _container_errors(container: Object, path: str, volumes: set[str | None]) -> list[FieldError]:
    errors = []
    name = container.get("name", "")
    if not name:
        errors.append(field_required(f"{path}.name"))
    elif not re.fullmatch(_LABEL, name):
        errors.append(field_invalid(f"{path}.name", name, _LABEL_RULE))
    if not container.get("image"):
        errors.append(field_required(f"{path}.image"))
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("name") not in volumes:
            shown = mount.get("name", "")
            errors.append(
                FieldError("FieldValueNotFound", f"{path}.volumeMounts[{index}].name", f'Not found: "{shown}"')
            )
    return errors


def _pod(new: Object, old: Object | None) -> list[FieldError]:
    spec = new.get("spec") or {}
    if old is None:
        return _pod_spec_errors(spec, "spec")
    before = old["spec"]
    if before.get("schedulingGates") and _extends(spec.get("nodeSelector"), before.get("nodeSelector")):
        spec, before = ({**one, "nodeSelector": None} for one in (spec, before))
    if _fixed_part(spec) != _fixed_part(before):
        return [field_forbidden("spec", _POD_UPDATE_RULE)]
    return []


def _extends(selector: Object | None, before: Object | None) -> bool:
    return (before or {}).items() <= (selector or {}).items()


def _fixed_part(spec: Object) -> Object:
    free = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates")
    fixed = {name: value for name, value in spec.items() if name not in free}
    for group in ("containers", "initContainers"):
        if group in fixed:
            fixed[group] = [{k: v for k, v in c.items() if k != "image"} for c in fixed[group]]
    return fixed


def _workload(new: Object, old: Object | None) -> list[FieldError]:
    spec = new.get("spec") or {}
    errors: list[FieldError] = []
    if isinstance(spec.get("replicas"), int) and spec["replicas"] < 0:
        errors.append(field_invalid("spec.replicas", spec["replicas"], "must be greater than or equal to 0"))
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    selector = from_object(spec.get("selector"))
    if not selector:
        errors.append(field_required("spec.selector"))
    elif not matches_labels(selector, {"metadata": {"labels": labels}}):
        rule = "`selector` does not match template `labels`"
        errors.append(field_invalid("spec.template.metadata.labels", labels, rule))
    errors += _pod_spec_errors(template.get("spec") or {}, "spec.template.spec")
    if old is not None and spec.get("selector") != old["spec"].get("selector"):
        errors.append(field_invalid("spec.selector", spec.get("selector"), "field is immutable"))
    return errors


def _data_errors(new: Object, old: Object | None) -> list[FieldError]:
    size = sum(len(v) for name in ("data", "binaryData") for v in (new.get(name) or {}).values())
    if size > _MAX_DATA_BYTES:
        return [field_too_long("[]", _MAX_DATA_BYTES)]
    if old is None or not old.get("immutable"):
        return []
    rule = "field is immutable when `immutable` is set"
    fields = [name for name in ("immutable", "data", "binaryData") if new.get(name) != old.get(name)]
    return [field_forbidden(name, rule) for name in fields]


def _secret(new: Object, old: Object | None) -> list[FieldError]:
    errors = _data_errors(new, old)
    if old is not None and new.get("type") != old.get("type"):
        errors.append(field_invalid("type", new.get("type"), "field is immutable"))
    return errors


def _binding(new: Object, old: Object | None) -> list[FieldError]:
    if old is not None and new.get("roleRef") != old.get("roleRef"):
        return [field_invalid("roleRef", new.get("roleRef"), "cannot change roleRef")]
    return [] if new.get("roleRef") else [field_required("roleRef.name")]


def _event(new: Object, old: Object | None) -> list[FieldError]:
    about = new.get("involvedObject") or {}
    namespace = new["metadata"].get("namespace", "")
    if about.get("namespace", "") != namespace and not (not about.get("namespace") and namespace == "default"):
        shown = about.get("namespace", "")
        return [field_invalid("involvedObject.namespace", shown, "does not match event.namespace")]
    if old is not None or not new.get("eventTime"):
        return []
    # An event with the newer kind of time must say who acted, and how.
    needed = ("reportingComponent", "reportingInstance", "action", "reason")
    return [field_required(name) for name in needed if not new.get(name)]


VALIDATORS: dict[str, Callable[[Object, Object | None], list[FieldError]]] = {
    "Pod": _pod,
    "Deployment": _workload,
    "ReplicaSet": _workload,
    "ConfigMap": _data_errors,
    "Secret": _secret,
    "RoleBinding": _binding,
    "ClusterRoleBinding": _binding,
    "Event": _event,
}
