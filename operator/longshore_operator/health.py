"""`/healthz`, `/readyz` and `/metrics`: healthy means that reconciling makes progress, not that a process exists."""

import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from longshore_kube.client import WATCH_CLIENT_TIMEOUT_S
from longshore_operator.controller import Controller
from longshore_operator.metrics import OperatorMetrics

MAX_STALL_S = 180.0
MAX_SILENCE_S = 2.0 * WATCH_CLIENT_TIMEOUT_S


def obstacle(controller: Controller, leads: bool, now_s: float) -> str | None:
    """Return why reconciling makes no progress, or None; a process that stands by is healthy."""
    if not leads:
        return None
    stalled_s = controller.schedule.stalled_s(now_s)
    if stalled_s > MAX_STALL_S:
        return f"jobs wait, and no reconciliation has ended for {stalled_s:.0f} s"
    silence_s = now_s - controller.informer.last_contact_s
    if silence_s > MAX_SILENCE_S:
        return f"nothing was heard about pods for {silence_s:.0f} s"
    return None


def application(controller: Controller, metrics: OperatorMetrics, leads: Callable[[], bool]) -> web.Application:
    """Return the HTTP application."""

    async def healthz(_: web.Request) -> web.Response:
        reason = obstacle(controller, leads(), time.monotonic())
        return web.Response(text=reason or "ok", status=503 if reason else 200)

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="leading" if leads() else "standing by")

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", show_metrics)
    return app
