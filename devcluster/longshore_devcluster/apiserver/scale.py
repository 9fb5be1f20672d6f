"""The scale subresource of Deployments and ReplicaSets: their replicas."""

from aiohttp import web

from longshore_devcluster.apiserver import decode
from longshore_devcluster.apiserver.call import Call
from longshore_devcluster.apiserver.errors import bad_request, method_not_allowed, unsupported_media
from longshore_devcluster.apiserver.objects import Objects
from longshore_devcluster.apiserver.patches import MERGE_PATCH, patch_change
from longshore_devcluster.apiserver.render import respond, wants_indent
from longshore_devcluster.apiserver.request import write_options
from longshore_devcluster.apiserver.schema.builtin import builtin_types
from longshore_devcluster.apiserver.schema.node import Object

_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(obj: Object) -> Object:
    """Return the Scale of an object."""
    labels = (obj["spec"].get("selector") or {}).get("matchLabels") or {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: obj["metadata"][name] for name in _METADATA if name in obj["metadata"]},
        "spec": {"replicas": obj["spec"].get("replicas", 0)},
        "status": {
            "replicas": obj.get("status", {}).get("replicas", 0),
            "selector": ",".join(f"{name}={value}" for name, value in sorted(labels.items())),
        },
    }


async def handle(objects: Objects, call: Call) -> web.Response:
    """Answer a get or a merge patch of ``.../scale``, which is what `kubectl scale` sends."""
    info, resource = call.info, call.resource
    if info.verb == "get":
        obj = objects.read(resource, info.namespace, info.name)
    elif info.verb == "patch":
        if decode.media_type(call.content_type) != MERGE_PATCH:
            raise unsupported_media((MERGE_PATCH,))
        change_scale = patch_change(MERGE_PATCH, await call.body(), builtin_types()["Scale"])

        def change(current: Object) -> Object:
            replicas = (change_scale(scale_of(current)).get("spec") or {}).get("replicas", 0)
            if not isinstance(replicas, int) or replicas < 0:
                raise bad_request(f"spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0")
            current["spec"]["replicas"] = replicas
            return current

        options = write_options("UpdateOptions", call.query, call.agent)
        obj = objects.update(resource, info.namespace, info.name, change, options, "scale")
    else:
        raise method_not_allowed()
    return respond(scale_of(obj), indent=wants_indent(call.query, call.agent))
