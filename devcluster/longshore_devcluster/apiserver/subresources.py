"""Subresources with a behaviour of their own: binding, tokens, finalize."""

from aiohttp import web

from longshore_devcluster.apiserver import decode
from longshore_devcluster.apiserver.access.users import ISSUER, ServiceAccountTokens
from longshore_devcluster.apiserver.call import Call
from longshore_devcluster.apiserver.errors import (
    ObjectRef,
    bad_request,
    conflict,
    field_invalid,
    invalid,
    method_not_allowed,
    not_found,
)
from longshore_devcluster.apiserver.objects import Objects
from longshore_devcluster.apiserver.render import respond, wants_indent
from longshore_devcluster.apiserver.request import write_options
from longshore_devcluster.apiserver.rest import success
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.store import Key
from longshore_kube.times import rfc3339

_MIN_TOKEN_S, _DEFAULT_TOKEN_S = 600, 3600


class Subresources:
    """Answers ``pods/x/binding``, ``serviceaccounts/x/token``, ``namespaces/x/finalize``."""

    def __init__(self, objects: Objects, accounts: ServiceAccountTokens) -> None:
        self._objects, self._accounts = objects, accounts
        self._handlers = {
            "binding": self._bind,
            "token": self._token,
            "finalize": self._finalize,
        }

    def handles(self, subresource: str) -> bool:
        return subresource in self._handlers

    async def handle(self, call: Call) -> web.Response:
        wanted = "update" if call.info.subresource == "finalize" else "create"
        if call.info.verb != wanted:
            raise method_not_allowed()
        body = await call.body()
        sent = decode.parse_body(body, call.content_type, call.info.subresource) if body.strip() else {}
        if not isinstance(sent, dict):
            raise bad_request("the body must be an object")
        status, answer = self._handlers[call.info.subresource](call, sent)
        return respond(answer, status=status, indent=wants_indent(call.query, call.agent))

    def _bind(self, call: Call, binding: Object) -> tuple[int, Object]:
        name, node = call.info.name, (binding.get("target") or {}).get("name", "")
        if not node:
            cause = field_invalid("target.name", node, "must name a node")
            raise invalid(ObjectRef("", "Binding", name), [cause])
        now = rfc3339(self._objects.now())

        def bind(pod: Object) -> Object:
            current = pod["spec"].get("nodeName")
            if current or pod["metadata"].get("deletionTimestamp"):
                why = f'pod {name} is already assigned to node "{current}"'
                if not current:
                    why = f"pod {name} is being deleted, cannot be assigned to a host"
                raise conflict(ObjectRef("", "pods/binding", name), why)
            pod["spec"]["nodeName"] = node
            metadata = binding.get("metadata") or {}
            for field in ("annotations", "labels"):
                if metadata.get(field):
                    pod["metadata"][field] = {**(pod["metadata"].get(field) or {}), **metadata[field]}
            scheduled = {
                "type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now,
            }  # fmt: skip
            others = [c for c in pod["status"].get("conditions") or () if c["type"] != "PodScheduled"]
            pod["status"]["conditions"] = [*others, scheduled]
            return pod

        options = write_options("CreateOptions", call.query, call.agent)
        self._objects.update(call.resource, call.info.namespace, name, bind, options, "binding")
        return 201, {**success(), "code": 201}

    def _token(self, call: Call, request: Object) -> tuple[int, Object]:
        account = self._objects.read(call.resource, call.info.namespace, call.info.name)
        spec = request.get("spec") or {}
        expiration_s = spec.get("expirationSeconds") or _DEFAULT_TOKEN_S
        if expiration_s < _MIN_TOKEN_S:
            rule = "may not specify a duration less than 10 minutes"
            cause = field_invalid("spec.expirationSeconds", expiration_s, rule)
            raise invalid(ObjectRef("authentication.k8s.io", "TokenRequest"), [cause])
        bound = self._bound_pod(call, spec.get("boundObjectRef"))
        audiences = spec.get("audiences") or [ISSUER]
        token, ends = self._accounts.issue(account, audiences, expiration_s, bound)
        metadata = {
            "name": call.info.name,
            "namespace": call.info.namespace,
            "creationTimestamp": rfc3339(self._objects.now()),
        }
        answer: Object = {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": metadata,
            "spec": {"boundObjectRef": None, **spec, "audiences": audiences, "expirationSeconds": expiration_s},
            "status": {"token": token, "expirationTimestamp": rfc3339(ends)},
        }
        return 201, answer

    def _bound_pod(self, call: Call, ref: Object | None) -> Object | None:
        if not ref:
            return None
        if ref.get("kind") != "Pod":
            raise bad_request(f"cannot bind token to object of type {ref.get('kind')}; only pods are supported")
        record = self._objects.store.get(Key("pods", call.info.namespace, ref.get("name", "")))
        if record is None:
            raise not_found(ObjectRef("", "pods", ref.get("name", "")))
        account, uid = call.info.name, record.obj["metadata"]["uid"]
        if record.obj["spec"].get("serviceAccountName") != account:
            why = f'cannot bind token for serviceaccount "{account}" to pod running with different serviceaccount name.'
            raise bad_request(why)
        if ref.get("uid") and ref["uid"] != uid:
            why = f"the UID in the bound object reference ({ref['uid']}) does not match the UID in record ({uid})"
            raise conflict(ObjectRef("", "pods", ref["name"]), why)
        return {"name": ref["name"], "uid": uid}

    def _finalize(self, call: Call, sent: Object) -> tuple[int, Object]:
        if call.resource.storage != "namespaces":
            raise method_not_allowed()

        def change(namespace: Object) -> Object:
            namespace["spec"] = {"finalizers": (sent.get("spec") or {}).get("finalizers") or []}
            return namespace

        options = write_options("UpdateOptions", call.query, call.agent)
        return 200, self._objects.update(call.resource, "", call.info.name, change, options, "finalize")
