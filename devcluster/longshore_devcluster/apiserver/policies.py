"""ValidatingAdmissionPolicies: CEL expressions that judge the writes of others.

Creations and updates are judged; deletions, parameters, audit annotations and the authorizer are left out.
"""

from collections.abc import Iterator
from typing import Any

from celpy import CELEvalError, celtypes, json_to_cel

from longshore_devcluster.apiserver.access.users import User
from longshore_devcluster.apiserver.crd.cel import digest, evaluate, parse, read_by
from longshore_devcluster.apiserver.crd.cel_check import BadRule
from longshore_devcluster.apiserver.crd.cel_reads import only
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
_MAX_KEPT = 1 << 14
_CODES = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}


class Answers:
    """Answers of policies, by what was asked and what was read for them: they depend on nothing else.

    Most writes change the status: policies read the same of the next one as of the last.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, bool] = {}

    def get(self, asked: bytes) -> bool | None:
        """Return the answer; None: nobody has asked this."""
        return self._known.get(asked)

    def keep(self, asked: bytes, *, answer: bool) -> None:
        """Keep an answer, and forget all earlier ones where they have become too many."""
        if len(self._known) >= _MAX_KEPT:
            self._known.clear()
        self._known[asked] = answer


class Policies:
    """Called for every write, after everything that may change the object."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._answers = Answers()

    def check(self, user: User, resource: Resource, new: Object, old: Object | None, subresource: str) -> None:
        """Raises ApiError when a policy that is bound with the action Deny refuses the write."""
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
                refused = self._refused(policy.obj["spec"], known, denied)
                if refused is not None:
                    raise _refusal(resource, request, *refused)

    def _refused(self, spec: Object, known: Object, denied: str) -> tuple[str, str] | None:
        """Return the message and the reason of a policy's refusal."""
        for condition in spec.get("matchConditions") or ():
            matched = self._matches(condition["expression"], known)
            if isinstance(matched, CELEvalError):
                return (f"{denied} {matched.args[0]}", "Forbidden") if _fails_closed(spec) else None
            if not matched:
                return None
        judgement = {name: spec.get(name) for name in ("variables", "validations", "failurePolicy")}
        read = _read_for((*_expressions(spec, "variables"), *_expressions(spec, "validations")), known)
        asked = digest(judgement, read)
        if self._answers.get(asked):
            return None
        refused = _judged(spec, read, denied)
        if refused is None:
            self._answers.keep(asked, answer=True)
        return refused

    def _matches(self, expression: str, known: Object) -> bool | CELEvalError:
        """Return whether a match condition holds, or the error of its evaluation."""
        read = _read_for((expression,), known)
        asked = digest(expression, read)
        answer = self._answers.get(asked)
        if answer is not None:
            return answer
        found = evaluate(expression, _as_cel(read))
        if isinstance(found, CELEvalError):
            return found
        self._answers.keep(asked, answer=bool(found))
        return bool(found)


def policy_errors(policy: Object) -> list[FieldError]:
    """Expressions of a policy that is being written must parse."""
    return list(_expression_errors(policy.get("spec") or {}))


def _expression_errors(spec: Object) -> Iterator[FieldError]:
    for group in ("matchConditions", "variables", "validations"):
        for index, one in enumerate(spec.get(group) or ()):
            expression = one.get("expression", "")
            try:
                parse(expression)
            except BadRule as error:
                yield field_invalid_text(f"spec.{group}[{index}].expression", f'"{expression}"', str(error))


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
    """Fields that are empty are not there: an expression that reads one of them is in error."""
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


def _judged(spec: Object, read: Object, denied: str) -> tuple[str, str] | None:
    """Return the message and the reason of a refusal; None: the policy lets the request pass."""
    # A variable that cannot be computed is an error where it is used, and only there.
    known = _as_cel(read)
    known["variables"] = celtypes.MapType()
    for variable in spec.get("variables") or ():
        known["variables"][celtypes.StringType(variable["name"])] = evaluate(variable["expression"], known)
    for validation in spec.get("validations") or ():
        passed = evaluate(validation["expression"], known)
        if isinstance(passed, CELEvalError):
            if _fails_closed(spec):
                why = f"expression '{validation['expression']}' resulted in error: {passed.args[0]}"
                return f"{denied} {why}", "Invalid"
        elif not passed:
            message = validation.get("message") or f"failed expression: {validation['expression']}"
            return f"{denied} {message}", validation.get("reason") or "Invalid"
    return None


def _fails_closed(spec: Object) -> bool:
    return bool(spec.get("failurePolicy", "Fail") == "Fail")


def _expressions(spec: Object, part: str) -> tuple[str, ...]:
    return tuple(one["expression"] for one in spec.get(part) or ())


def _read_for(expressions: tuple[str, ...], known: Object) -> Object:
    """Return what these expressions read of the request and of both objects."""
    return {name: only(value, None, read_by(expressions, name)) for name, value in known.items()}


def _as_cel(read: Object) -> dict[str, Any]:
    return {name: None if value is None else json_to_cel(value) for name, value in read.items()}


def _refusal(resource: Resource, request: Object, message: str, reason: str) -> ApiError:
    error = forbidden(resource.ref(request.get("name", "")), message)
    details = {**(error.details or {}), "causes": [{"message": message}]}
    return ApiError(_CODES[reason], reason, error.message, details)
