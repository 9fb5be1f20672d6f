"""The scale subresource: one view of the replicas of every kind that has some."""

from aiohttp import web

from longshore_devcluster.apiserver import decode
from longshore_devcluster.apiserver.builtin.printers import selector_text
from longshore_devcluster.apiserver.builtin.printers_more import SCALES
from longshore_devcluster.apiserver.call import Call
from longshore_devcluster.apiserver.errors import bad_request, method_not_allowed, unsupported_media
from longshore_devcluster.apiserver.negotiate import negotiate
from longshore_devcluster.apiserver.objects import Objects
from longshore_devcluster.apiserver.patches import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Change, patch_change
from longshore_devcluster.apiserver.render import respond, wants_indent
from longshore_devcluster.apiserver.request import write_options
from longshore_devcluster.apiserver.resources import Resource
from longshore_devcluster.apiserver.schema.builtin import builtin_types
from longshore_devcluster.apiserver.schema.node import Json, Object
from longshore_devcluster.apiserver.tables import row, table


def _at(obj: Object, path: str) -> Json:
    node: Json = obj
    for key in path.strip(".").split("."):
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _with(obj: Object, path: str, value: Json) -> Object:
    *parents, last = path.strip(".").split(".")
    node = obj
    for key in parents:
        node = node.setdefault(key, {})
    node[last] = value
    return obj


def _paths(resource: Resource) -> tuple[str, str, str]:
    if resource.custom and resource.custom.scale:
        scale = resource.custom.scale
        return scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath", "")
    return ".spec.replicas", ".status.replicas", ""


def scale_of(resource: Resource, obj: Object) -> Object:
    """Return the Scale of an object."""
    wanted, actual, selector = _paths(resource)
    metadata = {
        name: obj["metadata"][name]
        for name in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        if name in obj["metadata"]
    }
    status: Object = {"replicas": _at(obj, actual) or 0}
    if resource.custom:
        if selector and _at(obj, selector):
            status["selector"] = _at(obj, selector)
    else:
        text = selector_text(_at(obj, "spec.selector"))
        status["selector"] = "" if text == "<none>" else text
    spec = {"replicas": _at(obj, wanted)} if _at(obj, wanted) else {}
    return {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status}


async def handle(objects: Objects, call: Call) -> web.Response:
    """get, update and patch of ``.../scale``."""
    info, resource = call.info, call.resource
    described = resource.subresource("scale")
    if described is None or info.verb not in described.verbs:
        raise method_not_allowed()
    if info.verb == "get":
        obj = objects.read(resource, info.namespace, info.name)
    else:
        obj = await _write(objects, call)
    scale = scale_of(resource, obj)
    wanted = negotiate(call.http.headers.get("Accept", ""))
    if wanted.transform == "Table":
        now = objects.now()
        rows = [row(SCALES, scale, scale, now, "Metadata", "v1")]
        return respond(table(SCALES, rows, {"resourceVersion": scale["metadata"]["resourceVersion"]}))
    return respond(scale, as_yaml=wanted.yaml, indent=wants_indent(call.query, call.agent))


def _scale_change(call: Call, body: bytes) -> Change:
    if call.info.verb == "update":
        sent = decode.parse_body(body, call.content_type, "Scale")
        return lambda _: dict(sent) if isinstance(sent, dict) else {}
    media = decode.media_type(call.content_type)
    accepted = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH)
    if media not in accepted:
        raise unsupported_media(accepted)
    return patch_change(media, body, builtin_types()["Scale"])


async def _write(objects: Objects, call: Call) -> Object:
    info, resource = call.info, call.resource
    change_scale = _scale_change(call, await call.body())

    def change(current: Object) -> Object:
        changed = change_scale(scale_of(resource, current))
        replicas = (changed.get("spec") or {}).get("replicas", 0)
        if not isinstance(replicas, int) or replicas < 0:
            raise bad_request(f"spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0")
        metadata = changed.get("metadata") or {}
        for name in ("resourceVersion", "uid", "name"):
            if metadata.get(name):
                current["metadata"][name] = metadata[name]
        return _with(current, _paths(resource)[0], replicas)

    options = write_options("UpdateOptions", call.query, call.agent)
    return objects.update(resource, info.namespace, info.name, change, options, "scale")
