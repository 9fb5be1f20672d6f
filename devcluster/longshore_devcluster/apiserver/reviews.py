"""Who the asking user is, and whether they may do something: answered, and not stored."""

from aiohttp import web

from longshore_devcluster.apiserver import decode
from longshore_devcluster.apiserver.access.rbac import Attributes, Rbac
from longshore_devcluster.apiserver.access.users import User
from longshore_devcluster.apiserver.call import Call
from longshore_devcluster.apiserver.errors import bad_request, method_not_allowed
from longshore_devcluster.apiserver.negotiate import negotiate
from longshore_devcluster.apiserver.render import respond, wants_indent
from longshore_devcluster.apiserver.schema.node import Object


def _asked(spec: Object) -> Attributes:
    """Return what a review asks about. Raises 400 where it asks nothing or two things."""
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and path is None:
        names = ("verb", "group", "resource", "subresource", "namespace", "name")
        return Attributes(*(resource.get(name, "") for name in names))
    if path is None or resource is not None:
        raise bad_request("exactly one of spec.resourceAttributes and spec.nonResourceAttributes must be specified")
    return Attributes(path.get("verb", ""), path=path.get("path", ""))


def _status(rbac: Rbac, user: User, kind: str, spec: Object) -> Object:
    if kind == "SelfSubjectReview":
        info = {"username": user.name, "uid": user.uid, "groups": list(user.groups), "extra": dict(user.extra)}
        return {"userInfo": {name: value for name, value in info.items() if value}}
    return {"allowed": True, "reason": "RBAC: allowed"} if rbac.allows(user, _asked(spec)) else {"allowed": False}


async def review(rbac: Rbac, call: Call, user: User) -> web.Response:
    """Answer a SelfSubjectReview or a SelfSubjectAccessReview."""
    if call.info.verb != "create":
        raise method_not_allowed()
    resource = call.resource
    sent = decode.parse_body(await call.body(), call.content_type, resource.kind)
    asked, _ = decode.clean_builtin(decode.check_type_meta(resource, sent), resource.schema, resource.kind)
    negotiate(call.http.headers.get("Accept", ""))
    answer: Object = {
        **asked,
        "metadata": {"creationTimestamp": None},
        "status": _status(rbac, user, resource.kind, asked.get("spec") or {}),
    }
    return respond(answer, status=201, indent=wants_indent(call.query, call.agent))
