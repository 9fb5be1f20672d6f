"""ValidatingAdmissionPolicies: CEL expressions that judge the writes of others.

Creations and updates are judged; deletions, parameters, audit annotations and the authorizer are left out.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from cel_expr_python import cel

from longshore_devcluster.apiserver.access.users import User
from longshore_devcluster.apiserver.crd.cel import EvaluationError, complaint, environment, evaluate
from longshore_devcluster.apiserver.errors import ApiError, FieldError, field_invalid_text, forbidden
from longshore_devcluster.apiserver.ownership import without_entries
from longshore_devcluster.apiserver.resources import Resource
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.selectors import matches_labels
from longshore_devcluster.apiserver.store import Key, Store
from longshore_devcluster.client.selectors import from_object

GROUP = "admissionregistration.k8s.io"
_POLICIES = f"validatingadmissionpolicies.{GROUP}"
_BINDINGS = f"validatingadmissionpolicybindings.{GROUP}"
_CODES = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}


_ENVIRONMENT = environment(dict.fromkeys(("request", "object", "oldObject", "variables"), cel.Type.DYN))


class Policies:
    """Called for every write, after everything that may change the object."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def check(self, user: User, resource: Resource, new: Object, old: Object | None, subresource: str) -> None:
        """Check a write; raises ApiError when a policy that is bound with the action Deny refuses it."""
        if resource.group == GROUP:
            return
        request = _request(user, resource, new, old, subresource)
        namespace = self._store.get(Key("namespaces", "", request.get("namespace", "")))
        for record in self._store.items(_BINDINGS):
            spec = record.obj["spec"]
            policy = self._store.get(Key(_POLICIES, "", spec.get("policyName", "")))
            if policy is None or "Deny" not in (spec.get("validationActions") or ()):
                continue
            where = (policy.obj["spec"].get("matchConstraints") or {}, spec.get("matchResources") or {})
            about = namespace.obj if namespace is not None else None
            if all(_covers(part, request, new, old, about) for part in where):
                name = policy.obj["metadata"]["name"]
                denied = f"ValidatingAdmissionPolicy '{name}' with binding '{record.key.name}' denied request:"
                known = {
                    "request": request,
                    "object": without_entries(new),
                    "oldObject": None if old is None else without_entries(old),
                }
                refused = _refused(policy.obj["spec"], known, denied)
                if refused is not None:
                    raise _refusal(resource, request, *refused)


def _refused(spec: Object, known: Object, denied: str) -> tuple[str, str] | None:
    """Return the message and the reason of a policy's refusal."""
    for condition in spec.get("matchConditions") or ():
        try:
            if not _value(condition["expression"], known):
                return None
        except EvaluationError as error:
            return (f"{denied} {error}", "Forbidden") if _fails_closed(spec) else None
    return _judged(spec, known, denied)


def policy_errors(policy: Object) -> list[FieldError]:
    """Return errors of the expressions of a policy that is being written: they must parse."""
    return list(_expression_errors(policy.get("spec") or {}))


def _expression_errors(spec: Object) -> Iterator[FieldError]:
    for group in ("matchConditions", "variables", "validations"):
        for index, one in enumerate(spec.get(group) or ()):
            expression = one.get("expression", "")
            if why := complaint(_ENVIRONMENT, expression):
                yield field_invalid_text(f"spec.{group}[{index}].expression", f'"{expression}"', why)


def _request(user: User, resource: Resource, new: Object, old: Object | None, subresource: str) -> Object:
    metadata = new["metadata"]
    names = {"group": resource.group, "version": resource.version}
    who = {
        "username": user.name,
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": {name: list(values) for name, values in user.extra.items()},
    }
    request = {
        "kind": {**names, "kind": resource.kind},
        "resource": {**names, "resource": resource.plural},
        "subResource": subresource,
        # The name that the server made up is not part of the request.
        "name": "" if old is None and metadata.get("generateName") else metadata["name"],
        "namespace": metadata.get("namespace", ""),
        "operation": "CREATE" if old is None else "UPDATE",
        "userInfo": _present(who),
    }
    return _present(request)


def _present(fields: Object) -> Object:
    """Leave out fields that are empty: an expression that reads one of them is in error."""
    return {name: value for name, value in fields.items() if value}


def _covers(part: Object, request: Object, new: Object, old: Object | None, namespace: Object | None) -> bool:
    """Return whether `matchConstraints`, or the `matchResources` of a binding, mean a request."""
    rules = part.get("resourceRules")
    if rules and not any(_rule_covers(rule, request) for rule in rules):
        return False
    if any(_rule_covers(rule, request) for rule in part.get("excludeResourceRules") or ()):
        return False
    selector = from_object(part.get("namespaceSelector") or {})
    if namespace is not None and selector is not None and not matches_labels(selector, namespace):
        return False
    selector = from_object(part.get("objectSelector") or {})
    return selector is None or any(matches_labels(selector, one) for one in (new, old) if one is not None)


def _rule_covers(rule: Object, request: Object) -> bool:
    resource, subresource = request["resource"]["resource"], request.get("subResource")
    if subresource:
        wanted = {f"{resource}/{subresource}", f"{resource}/*", f"*/{subresource}", "*/*"}
    else:
        wanted = {resource, f"{resource}/*", "*", "*/*"}
    names = rule.get("resourceNames") or ()
    return (
        bool(wanted & set(rule.get("resources") or ()))
        and bool({request["resource"]["group"], "*"} & set(rule.get("apiGroups") or ()))
        and bool({request["resource"]["version"], "*"} & set(rule.get("apiVersions") or ()))
        and bool({request["operation"], "*"} & set(rule.get("operations") or ()))
        and (not names or request.get("name") in names)
        and rule.get("scope", "*") in ("*", "Namespaced" if "namespace" in request else "Cluster")
    )


def _judged(spec: Object, known: Object, denied: str) -> tuple[str, str] | None:
    """Return the message and the reason of a refusal; None: the policy lets the request pass."""
    variables: Object = {}
    faults: dict[str, EvaluationError] = {}
    for variable in spec.get("variables") or ():
        try:
            variables[variable["name"]] = _value(variable["expression"], known | {"variables": variables})
        except EvaluationError as error:
            # It is an error where the variable is used, and only there.
            faults[f"no such key: {variable['name']}"] = error
    for validation in spec.get("validations") or ():
        try:
            passed = _value(validation["expression"], known | {"variables": variables})
        except EvaluationError as error:
            if _fails_closed(spec):
                why = f"expression '{validation['expression']}' resulted in error: {faults.get(str(error), error)}"
                return f"{denied} {why}", "Invalid"
        else:
            if not passed:
                message = validation.get("message") or f"failed expression: {validation['expression']}"
                return f"{denied} {message}", validation.get("reason") or "Invalid"
    return None


def _value(expression: str, known: Object) -> Any:
    return evaluate(_program(expression), known)


@cache
def _program(expression: str) -> cel.Expression:
    return _ENVIRONMENT.compile(expression)


def _fails_closed(spec: Object) -> bool:
    return bool(spec.get("failurePolicy", "Fail") == "Fail")


def _refusal(resource: Resource, request: Object, message: str, reason: str) -> ApiError:
    error = forbidden(resource.ref(request.get("name", "")), message)
    details = {**(error.details or {}), "causes": [{"message": message}]}
    return ApiError(_CODES[reason], reason, error.message, details)
