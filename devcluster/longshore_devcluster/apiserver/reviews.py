"""Reviews: questions about identities and rights, answered and not stored."""

from collections.abc import Callable
from datetime import datetime

from aiohttp import web

from longshore_devcluster.apiserver import decode
from longshore_devcluster.apiserver.access.rbac import Attributes, Rbac
from longshore_devcluster.apiserver.access.users import ISSUER, Authenticator, User
from longshore_devcluster.apiserver.call import Call
from longshore_devcluster.apiserver.errors import bad_request, method_not_allowed
from longshore_devcluster.apiserver.negotiate import negotiate
from longshore_devcluster.apiserver.render import respond, wants_indent
from longshore_devcluster.apiserver.schema.node import Object
from longshore_kube.times import rfc3339


def _user_info(user: User) -> Object:
    info: Object = {"username": user.name}
    if user.uid:
        info["uid"] = user.uid
    info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = dict(user.extra)
    return info


def _asked(spec: Object) -> Attributes:
    """Return what a review asks about. Raises 400 where it asks nothing or two things."""
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and path is None:
        return Attributes(
            resource.get("verb", ""),
            resource.get("group", ""),
            resource.get("resource", ""),
            resource.get("subresource", ""),
            resource.get("namespace", ""),
            resource.get("name", ""),
        )
    if path is None or resource is not None:
        raise bad_request("exactly one of spec.resourceAttributes and spec.nonResourceAttributes must be specified")
    return Attributes(path.get("verb", ""), path=path.get("path", ""))


class Reviews:
    """The resources of authentication.k8s.io and authorization.k8s.io."""

    def __init__(self, authenticator: Authenticator, rbac: Rbac, now: Callable[[], datetime]) -> None:
        self._authenticator, self._rbac, self._now = authenticator, rbac, now

    async def handle(self, call: Call, user: User) -> web.Response:
        if call.info.verb != "create":
            raise method_not_allowed()
        body = await call.body()
        sent = decode.parse_body(body, call.content_type, call.resource.kind)
        review = decode.check_type_meta(call.resource, sent)
        review, _ = decode.clean_builtin(review, call.resource.schema, call.resource.kind)
        spec = review.get("spec") or {}
        status = self._status(call.resource.kind, spec, user)
        negotiate(call.http.headers.get("Accept", ""))
        metadata: Object = {"creationTimestamp": None}
        if call.resource.kind == "SelfSubjectReview":
            metadata = {"creationTimestamp": rfc3339(self._now())}
        answer: Object = {"kind": review["kind"], "apiVersion": review["apiVersion"], "metadata": metadata}
        if call.resource.kind != "SelfSubjectReview":
            answer["spec"] = spec
        answer["status"] = status
        return respond(answer, status=201, indent=wants_indent(call.query, call.agent))

    def _status(self, kind: str, spec: Object, user: User) -> Object:
        if kind == "SelfSubjectReview":
            return {"userInfo": _user_info(user)}
        if kind == "TokenReview":
            return self._token_status(spec)
        if kind == "SelfSubjectRulesReview":
            return self._rules_status(user, spec.get("namespace", ""))
        if kind in ("SubjectAccessReview", "LocalSubjectAccessReview"):
            user = User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""))
        allowed = self._rbac.allows(user, _asked(spec))
        return {"allowed": True, "reason": "RBAC: allowed"} if allowed else {"allowed": False}

    def _token_status(self, spec: Object) -> Object:
        audiences = tuple(spec.get("audiences") or (ISSUER,))
        found = self._authenticator.by_token(spec.get("token", ""), audiences)
        if found is None:
            return {"user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": _user_info(found), "audiences": list(audiences)}

    def _rules_status(self, user: User, namespace: str) -> Object:
        resource_rules, path_rules = [], []
        for rule in self._rbac.rules(user, namespace):
            if "nonResourceURLs" in rule:
                path_rules.append({"verbs": rule["verbs"], "nonResourceURLs": rule["nonResourceURLs"]})
            else:
                names = ("verbs", "apiGroups", "resources", "resourceNames")
                resource_rules.append({name: rule[name] for name in names if name in rule})
        return {"resourceRules": resource_rules, "nonResourceRules": path_rules, "incomplete": False}
