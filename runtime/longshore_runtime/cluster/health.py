"""`/readyz` and `/metrics` of a pod, served by a separate thread, so that they answer while the program is busy."""

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from longshore.api.contract import HEALTH_PORT
from longshore_runtime.cluster.served import Served


class HealthServer(Served):
    """Serves while the `with` block runs; `/readyz` answers 503 until `ready` is called."""

    def __init__(self, host: str, registry: CollectorRegistry, port: int = HEALTH_PORT) -> None:
        super().__init__("health", self._application(), [host], port)
        self._registry = registry
        self._is_ready = False

    def ready(self) -> None:
        """Report the pod as ready from now on."""
        self._is_ready = True

    def not_ready(self) -> None:
        """Report the pod as not ready from now on."""
        self._is_ready = False

    def _application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics)
        return application

    async def _readyz(self, request: web.Request) -> web.Response:
        return web.Response(text="ready\n") if self._is_ready else web.Response(text="not ready\n", status=503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": "text/plain; version=0.0.4"})
