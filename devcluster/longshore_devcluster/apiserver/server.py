"""The server: a directory with its data, a TLS socket, and the way of a request through it."""

import asyncio
import logging
import random
import secrets
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from aiohttp import web

from longshore_devcluster.apiserver.access.bootstrap import bootstrap
from longshore_devcluster.apiserver.access.jwt import Signer
from longshore_devcluster.apiserver.access.rbac import Rbac
from longshore_devcluster.apiserver.access.users import ADMIN, Authenticator, FixedTokens, ServiceAccountTokens
from longshore_devcluster.apiserver.builtin.table import builtin_resources
from longshore_devcluster.apiserver.clock import utc_now
from longshore_devcluster.apiserver.objects import Objects
from longshore_devcluster.apiserver.pki import Authority, load_or_create_key, write_private
from longshore_devcluster.apiserver.podstreams import PodStreams
from longshore_devcluster.apiserver.resources import Registry
from longshore_devcluster.apiserver.router import Router
from longshore_devcluster.apiserver.store import Store
from longshore_devcluster.client.kubeconfig import kubeconfig

_LOG = logging.getLogger(__name__)


class ApiServer:
    """A Kubernetes API server for development and tests, in this process.

    ``data_dir`` keeps everything: start again on it and the cluster is as it was. ``port`` 0 takes a free one.
    ``now`` is the clock of everything the server decides or stamps.
    """

    def __init__(
        self, data_dir: Path, host: str = "127.0.0.1", port: int = 0, *, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._data_dir = data_dir
        self._host = host
        self._port = port
        self._now = now
        self._streams: PodStreams | None = None
        self._router: Router | None = None
        self._runner: web.AppRunner | None = None
        self._store: Store | None = None
        self._tokens: FixedTokens | None = None

    @property
    def url(self) -> str:
        """``https://host:port``; known once started."""
        return f"https://{self._host}:{self._port}"

    @property
    def kubeconfig_path(self) -> Path:
        """The administrator's kubeconfig."""
        return self._data_dir / "kubeconfig"

    @property
    def ca_pem(self) -> str:
        return (self._data_dir / "pki" / "ca.crt").read_text()

    def component_token(self, component: str) -> str:
        """Return the token of ``system:kube-scheduler``, ``system:node`` or ``system:kube-controller-manager``."""
        assert self._tokens is not None, "the server has not been started"
        return self._tokens.of(component)

    def set_pod_streams(self, streams: PodStreams | None) -> None:
        """Set where logs and exec of pods come from (the kubelet)."""
        self._streams = streams

    async def start(self) -> None:
        """Load or create the cluster and serve it."""
        self._data_dir.mkdir(parents=True, exist_ok=True)
        authority = Authority(self._data_dir / "pki")
        signer = Signer(load_or_create_key(self._data_dir / "pki" / "service-accounts.key"))
        self._tokens = FixedTokens(self._data_dir / "tokens.json")
        self._store = Store(self._data_dir / "store.sqlite")
        objects = Objects(self._store, self._now, random.Random(secrets.randbits(128)))
        registry = Registry(builtin_resources())
        accounts = ServiceAccountTokens(signer, self._store, self._now)
        rbac = Rbac(self._store)
        self._router = Router(
            objects, registry, Authenticator(self._tokens, accounts), accounts, rbac, lambda: self._streams
        )
        self._router.start(authority.pem)
        bootstrap(objects, registry)
        await self._serve(authority)
        self._write_kubeconfig(authority)
        _LOG.info("serving %s", self.url)

    async def _serve(self, authority: Authority) -> None:
        assert self._router is not None
        application = web.Application(client_max_size=16 * 1024 * 1024)
        application.router.add_route("*", "/{path:.*}", self._router.serve)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=1.0,
            handler_cancellation=True,  # a watch ends when its client goes
        )
        await self._runner.setup()
        context = await asyncio.to_thread(authority.serving_context, self._host)
        site = web.TCPSite(self._runner, self._host, self._port, ssl_context=context)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self._router.listen_at(f"{self._host}:{self._port}")

    def _write_kubeconfig(self, authority: Authority) -> None:
        assert self._tokens is not None
        config = kubeconfig(self.url, authority.pem.encode(), {"token": self._tokens.of(ADMIN)})
        write_private(self.kubeconfig_path, config.encode())

    async def stop(self) -> None:
        """End every watch, and close the socket and the store."""
        if self._router:
            await self._router.stop()
        if self._runner:
            await self._runner.cleanup()
        if self._store:
            self._store.close()
        self._runner = self._router = self._store = None
