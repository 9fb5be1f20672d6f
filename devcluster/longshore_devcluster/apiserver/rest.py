"""The REST verbs of stored resources, and their status and scale subresources."""

import asyncio
from dataclasses import replace

import orjson
from aiohttp import web

from longshore_devcluster.apiserver import decode, scale
from longshore_devcluster.apiserver.apply import apply, check_typed
from longshore_devcluster.apiserver.call import Call
from longshore_devcluster.apiserver.errors import (
    ApiError,
    ObjectRef,
    bad_request,
    field_invalid,
    forbidden,
    invalid,
    method_not_allowed,
    unsupported_media,
)
from longshore_devcluster.apiserver.lists import list_page, matcher
from longshore_devcluster.apiserver.negotiate import negotiate
from longshore_devcluster.apiserver.objects import Objects
from longshore_devcluster.apiserver.ownership import Owner, Owners
from longshore_devcluster.apiserver.patches import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, patch_change
from longshore_devcluster.apiserver.render import WatchEncoder, respond, shown_list, shown_object, wants_indent
from longshore_devcluster.apiserver.request import (
    DeleteOptions,
    WriteOptions,
    delete_options,
    list_options,
    write_options,
)
from longshore_devcluster.apiserver.resources import Resource
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.watches import Watch
from longshore_devcluster.apiserver.write_rules import presented

_DEFAULT_WATCH_S = 1800.0
STREAMING = web.RequestKey("streaming", bool)  # set on a request once its answer has begun


class Rest:
    """Answers calls about stored objects."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def handle(self, call: Call) -> web.StreamResponse:
        info, resource = call.info, call.resource
        if info.subresource == "scale":
            return await scale.handle(self._objects, call)
        allowed = resource.verbs
        if info.subresource:
            described = resource.subresource(info.subresource)
            allowed = described.verbs if described else ()
        misplaced = (info.verb == "create" and info.name and not info.subresource) or (
            info.verb in ("update", "patch") and not info.name
        )
        if misplaced or info.verb not in allowed:
            raise self._refusal(call)
        handler = getattr(self, f"_{info.verb}")
        answer: web.StreamResponse = await handler(call)
        return answer

    def _refusal(self, call: Call) -> ApiError:
        if call.info.verb == "update" and not call.info.name and call.resource.custom:
            return bad_request("name must be provided")
        return method_not_allowed()

    # --- reading

    async def _get(self, call: Call) -> web.StreamResponse:
        if call.http.method == "HEAD":
            raise method_not_allowed()
        wanted = negotiate(call.http.headers.get("Accept", ""), custom=call.resource.custom is not None)
        obj = self._objects.read(call.resource, call.info.namespace, call.info.name)
        return self._answer(call, obj, yaml=wanted.yaml)

    async def _list(self, call: Call) -> web.StreamResponse:
        wanted = negotiate(call.http.headers.get("Accept", ""), custom=call.resource.custom is not None)
        options = list_options(call.query)
        page = list_page(self._objects.store, call.resource, call.info.namespace, options)
        body = shown_list(call.resource, page, wanted, call.query, self._objects.now())
        return respond(body, as_yaml=wanted.yaml, indent=wants_indent(call.query, call.agent))

    async def _watch(self, call: Call) -> web.StreamResponse:
        wanted = negotiate(call.http.headers.get("Accept", ""), custom=call.resource.custom is not None)
        options = list_options(call.query)
        watch = Watch(self._objects.store, call.resource, call.info.namespace, options, call.info.name)
        encoder = WatchEncoder(call.resource, wanted, call.query)
        too_old: ApiError | None = None
        try:
            watch.start()
        except ApiError as error:
            if error.code != 410:
                raise
            too_old = error
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        response.enable_chunked_encoding()
        try:
            await response.prepare(call.http)
            call.http[STREAMING] = True
            if too_old:
                await response.write(encoder.line("ERROR", too_old.status(), self._objects.now()))
                return response
            timeout_s = options.timeout_s if options.timeout_s is not None else _DEFAULT_WATCH_S
            async for batch in watch.events(timeout_s):
                now = self._objects.now()
                await response.write(b"".join(encoder.line(event.type, event.obj, now) for event in batch))
        except (ConnectionResetError, asyncio.CancelledError):
            pass  # the client has gone, or the server stops
        finally:
            watch.stop()
        return response

    # --- writing

    async def _create(self, call: Call) -> web.StreamResponse:
        options = write_options("CreateOptions", call.query, call.agent)
        body = await call.body()
        obj, warnings = self._decoded(call, body, options)
        created = self._objects.create(call.resource, call.info.namespace, obj, options)
        return self._answer(call, created, status=201, warnings=warnings)

    def _decoded(self, call: Call, body: bytes, options: WriteOptions) -> tuple[Object, list[str]]:
        resource = call.resource
        raw = decode.parse_body(body, call.content_type, resource.kind)
        obj = decode.check_type_meta(resource, raw)
        protobuf = decode.media_type(call.content_type) == decode.PROTOBUF
        doubled = [] if protobuf else decode.duplicate_fields(body)
        return self._cleaned(resource, obj, options, doubled)

    def _cleaned(
        self, resource: Resource, obj: Object, options: WriteOptions, doubled: list[str]
    ) -> tuple[Object, list[str]]:
        """Return the object without fields its type does not know, and the warnings about them."""
        if resource.custom:
            unknown = resource.custom.prune(obj)
        else:
            obj, unknown = decode.clean_builtin(obj, resource.schema, resource.kind)
        complaints = [f'duplicate field "{path}"' for path in doubled]
        complaints += [f'unknown field "{path}"' for path in unknown]
        if complaints and options.field_validation == "Strict":
            raise decode.strict_error(resource.kind, resource.version, complaints)
        return obj, complaints if options.field_validation == "Warn" else []

    async def _update(self, call: Call) -> web.StreamResponse:
        options = write_options("UpdateOptions", call.query, call.agent)
        new, warnings = self._decoded(call, await call.body(), options)
        resource, info = call.resource, call.info
        if resource.creates_on_update and not info.subresource:
            exists = self._objects.store.get(resource.key(info.namespace, info.name)) is not None
            if not exists:
                created = self._objects.create(resource, info.namespace, new, options)
                return self._answer(call, created, status=201, warnings=warnings)
        updated = self._objects.update(resource, info.namespace, info.name, lambda _: new, options, info.subresource)
        return self._answer(call, updated, warnings=warnings)

    async def _patch(self, call: Call) -> web.StreamResponse:
        media = decode.media_type(call.content_type)
        accepted = [JSON_PATCH, MERGE_PATCH, APPLY_PATCH]
        if not call.resource.custom:
            accepted.insert(2, STRATEGIC_PATCH)
        if media not in accepted:
            if call.resource.custom:
                raise unsupported_media(accepted)
            raise ApiError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
        body = await call.body()
        if media == APPLY_PATCH:
            return self._apply(call, body)
        options = write_options("PatchOptions", call.query, call.agent)
        change = patch_change(media, body, call.resource.schema)
        lenient = replace(options, field_validation="Warn")
        if options.field_validation == "Ignore":
            lenient = options
        warnings: list[str] = []

        def patched(current: Object) -> Object:
            changed = change(current)
            before = orjson.dumps(changed).decode()
            cleaned, complaints = self._cleaned(call.resource, changed, lenient, [])
            if complaints and options.field_validation == "Strict":
                why = f"strict decoding error: {', '.join(complaints)}"
                cause = field_invalid("patch", before, why)
                raise invalid(ObjectRef("", ""), [cause])
            warnings.extend(complaints)
            return cleaned

        info = call.info
        updated = self._objects.update(call.resource, info.namespace, info.name, patched, options, info.subresource)
        return self._answer(call, updated, warnings=warnings)

    def _apply(self, call: Call, body: bytes) -> web.StreamResponse:
        options = write_options("PatchOptions", call.query, call.agent, apply=True)
        resource, info = call.resource, call.info
        config = decode.parse_yaml(body)
        config = decode.check_type_meta(resource, config)
        self._check_applied(call, config)
        check_typed(config, resource.schema, info.namespace, info.name, resource.group_version, resource.kind)
        owner = Owner(options.manager, "Apply", resource.group_version, info.subresource)
        exists = self._objects.store.get(resource.key(info.namespace, info.name)) is not None
        if not exists:
            if info.subresource:
                self._objects.read(resource, info.namespace, info.name)
            blank: Object = {"metadata": {}}
            applied = apply(blank, config, resource.schema, owner, force=True)
            obj, _ = self._cleaned(resource, applied.obj, options, [])
            obj["metadata"]["name"] = info.name
            created = self._objects.create(resource, info.namespace, obj, options, applied.owners)
            return self._answer(call, created, status=201)
        result: list[Owners] = []

        def change(current: Object) -> Object:
            if info.subresource == "status":
                config.pop("spec", None)
            applied = apply(current, config, resource.schema, owner, force=options.force)
            result.append(applied.owners)
            obj, _ = self._cleaned(resource, applied.obj, options, [])
            return obj

        updated = self._objects.update(
            resource, info.namespace, info.name, change, options, info.subresource, lambda: result[0]
        )
        return self._answer(call, updated)

    def _check_applied(self, call: Call, config: Object) -> None:
        metadata, info = config["metadata"], call.info
        if metadata.get("managedFields") is not None:
            raise bad_request("metadata.managedFields must be nil")
        shown = metadata.get("name")
        if shown and shown != info.name:
            raise bad_request(f"the name of the object ({shown}) does not match the name on the URL ({info.name})")
        if metadata.get("namespace") and metadata["namespace"] != info.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        metadata["name"] = info.name
        if call.resource.namespaced:
            metadata["namespace"] = info.namespace
        if call.resource.has_status and not info.subresource:
            config.pop("status", None)

    # --- deleting

    async def _delete(self, call: Call) -> web.StreamResponse:
        options = await self._delete_options(call)
        resource, info = call.resource, call.info
        deleted = self._objects.delete(resource, info.namespace, info.name, options)
        if deleted.gone and not resource.delete_answers_object:
            metadata = deleted.obj["metadata"]
            details = {**resource.ref(info.name).details, "uid": metadata["uid"]}
            return self._plain(call, success(details))
        return self._answer(call, deleted.obj)

    async def _deletecollection(self, call: Call) -> web.StreamResponse:
        options = await self._delete_options(call)
        resource, namespace = call.resource, call.info.namespace
        matches = matcher(resource, list_options(call.query))
        page = [r for r in self._objects.store.items(resource.storage, namespace) if matches(r.obj)]
        items = []
        for record in page:
            try:
                deleted = self._objects.delete(resource, record.key.namespace, record.key.name, options)
            except ApiError as error:
                if error.code in (403, 404) and resource.storage == "namespaces":
                    continue
                raise
            items.append(deleted.obj)
        if resource.custom:
            items = [presented(resource, record) for record in page]
        body = {
            "kind": resource.list_kind,
            "apiVersion": resource.group_version,
            "metadata": {"resourceVersion": str(self._objects.store.version)},
            "items": items,
        }
        return self._plain(call, body)

    async def _delete_options(self, call: Call) -> DeleteOptions:
        body = await call.body()
        if not body.strip():
            return delete_options({}, call.query)
        parsed = decode.parse_body(body, call.content_type, "DeleteOptions")
        if not isinstance(parsed, dict):
            raise bad_request("the body of a delete must be a DeleteOptions object")
        return delete_options(parsed, call.query)

    # --- answers

    def _answer(
        self,
        call: Call,
        obj: Object,
        *,
        status: int = 200,
        warnings: list[str] | None = None,
        yaml: bool = False,
    ) -> web.Response:
        wanted = negotiate(call.http.headers.get("Accept", ""), custom=call.resource.custom is not None)
        body = shown_object(call.resource, obj, wanted, call.query, self._objects.now())
        response = respond(body, status=status, as_yaml=wanted.yaml, indent=wants_indent(call.query, call.agent))
        for warning in warnings or ():
            response.headers.add("Warning", f"299 - {orjson.dumps(warning).decode()}")
        return response

    def _plain(self, call: Call, body: Object) -> web.Response:
        return respond(body, indent=wants_indent(call.query, call.agent))


def success(details: Object | None = None) -> Object:
    """Return a ``Status`` of success."""
    status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return {**status, "details": details} if details is not None else status


__all__ = ["Call", "Rest", "forbidden", "success"]
