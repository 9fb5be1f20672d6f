"""The way of a request: authentication, authorization, then the part of the server that answers it."""

import logging
from collections.abc import Callable

from aiohttp import web

from longshore_devcluster.apiserver.access.rbac import Attributes, Rbac, refusal
from longshore_devcluster.apiserver.access.users import Authenticator, ServiceAccountTokens, User
from longshore_devcluster.apiserver.admission import Admission
from longshore_devcluster.apiserver.call import Call
from longshore_devcluster.apiserver.crd.controller import CustomResources
from longshore_devcluster.apiserver.discovery import VERSION, Discovery
from longshore_devcluster.apiserver.errors import ApiError, PlainNotFound, no_such_resource, not_found
from longshore_devcluster.apiserver.housekeeping.keeper import Housekeeper
from longshore_devcluster.apiserver.objects import Objects
from longshore_devcluster.apiserver.openapi.documents import OpenApi
from longshore_devcluster.apiserver.podstreams import PodStreams, execute, forward_ports, logs
from longshore_devcluster.apiserver.render import respond, wants_indent
from longshore_devcluster.apiserver.request import RequestInfo, parse_request
from longshore_devcluster.apiserver.resources import Registry, Resource
from longshore_devcluster.apiserver.rest import STREAMING, Rest
from longshore_devcluster.apiserver.reviews import review
from longshore_devcluster.apiserver.subresources import Subresources

_LOG = logging.getLogger(__name__)
_HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
_ITEM_VERBS = ("create", "get", "update", "patch", "delete")


class Router:
    """Knows every part of the server and sends each request to one of them."""

    def __init__(
        self,
        objects: Objects,
        registry: Registry,
        authenticator: Authenticator,
        accounts: ServiceAccountTokens,
        rbac: Rbac,
        streams: Callable[[], PodStreams | None],
    ) -> None:
        self._objects, self._registry = objects, registry
        self._authenticator, self._rbac, self._streams = authenticator, rbac, streams
        self._rest = Rest(objects)
        self._subresources = Subresources(objects, accounts)
        self._discovery = Discovery(registry, "")
        self._openapi = OpenApi(registry)
        self._admission = Admission(objects, rbac)
        self._custom = CustomResources(objects, registry)
        self._keeper = Housekeeper(objects, registry)

    def start(self, ca_pem: str) -> None:
        """Load the custom resources and start the housekeeping."""
        self._objects.admission.append(self._admission.admit)
        self._custom.start()
        self._keeper.start(ca_pem)

    def listen_at(self, address: str) -> None:
        self._discovery = Discovery(self._registry, address)

    async def stop(self) -> None:
        await self._keeper.stop()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answers one request; every refusal becomes a Status."""
        query = dict(request.query.items())
        try:
            return await self._answer(request, query)
        except ApiError as error:
            indent = wants_indent(query, request.headers.get("User-Agent", ""))
            return respond(error.status(), status=error.code, indent=indent, headers=error.headers)
        except PlainNotFound:
            return web.Response(status=404, text="404 page not found\n")
        except ConnectionResetError:
            raise
        except Exception as error:
            _LOG.exception("%s %s", request.method, request.path_qs)
            if request.get(STREAMING):
                raise  # an answer is on its way already: aiohttp cuts the connection
            status = ApiError(500, "InternalError", f"Internal error occurred: {error!r}").status()
            return respond(status, status=500)

    async def _answer(self, request: web.Request, query: dict[str, str]) -> web.StreamResponse:
        user = self._authenticator.user(request.headers.get("Authorization", ""))
        info = parse_request(request.method, request.path, query)
        self._authorize(user, info)
        if not info.is_resource:
            return self._non_resource(request, info.path)
        resource = self._registry.find(info.group, info.version, info.resource)
        if resource is None:
            if self._registry.is_builtin_group(info.group):
                raise no_such_resource()
            raise PlainNotFound(info.path)
        self._check_scope(resource, info)
        if resource.namespaced and not info.namespace and info.verb in _ITEM_VERBS:
            raise no_such_resource()
        return await self._resource_call(Call(request, info, resource, query), user)

    def _check_scope(self, resource: Resource, info: RequestInfo) -> None:
        if not resource.namespaced and info.namespace and info.resource != "namespaces":
            raise no_such_resource()
        if not info.subresource or resource.subresource(info.subresource) is not None:
            return
        if resource.custom:
            raise not_found(resource.ref(info.name))
        if (resource.storage, info.subresource) != ("namespaces", "finalize"):
            raise no_such_resource()

    async def _resource_call(self, call: Call, user: User) -> web.StreamResponse:
        info = call.info
        with self._admission.acting(user):
            if info.resource in ("selfsubjectreviews", "selfsubjectaccessreviews"):
                return await review(self._rbac, call, user)
            if info.subresource == "log":
                return await logs(self._objects, self._streams(), call)
            if info.subresource == "exec":
                return await execute(self._objects, self._streams(), call)
            if info.subresource == "portforward":
                return await forward_ports(self._objects, self._streams(), call)
            if self._subresources.handles(info.subresource):
                return await self._subresources.handle(call)
            return await self._rest.handle(call)

    def _authorize(self, user: User, info: RequestInfo) -> None:
        if info.is_resource:
            namespace, name = info.namespace, info.name or info.selected_name
            asked = Attributes(info.verb, info.group, info.resource, info.subresource, namespace, name)
        else:
            asked = Attributes(info.verb, path=info.path)
        if not self._rbac.allows(user, asked):
            raise refusal(user, asked)

    def _non_resource(self, request: web.Request, path: str) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            raise PlainNotFound(path)
        plain = path.rstrip("/") or "/"
        if plain.startswith(_HEALTH_PATHS):
            return web.Response(text="ok")
        if plain == "/version":
            return respond(VERSION, indent=True)
        if plain.startswith("/openapi/"):
            return self._openapi.answer(request, plain)
        if plain in ("/api", "/apis") or plain.startswith(("/api/", "/apis/")):
            return self._discovery.answer(request, plain)
        raise PlainNotFound(path)
