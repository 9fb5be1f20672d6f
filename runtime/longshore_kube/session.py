"""HTTP sessions that authenticate themselves: with credentials that rotate, expire or come from a plugin."""

import asyncio
import ssl
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from aiohttp.client_middlewares import ClientHandlerType, ClientMiddlewareType

from longshore_kube.access import Access
from longshore_kube.errors import AccessError
from longshore_kube.plugin import Issued

_MARGIN_S = 10.0
"""Credentials that expire within so short a time are not sent any more."""


async def open_session(
    access: Access,
    user_agent: str,
    *,
    middlewares: Sequence[ClientMiddlewareType] = (),
    response_class: type[aiohttp.ClientResponse] = aiohttp.ClientResponse,
    max_connections: int = 0,
) -> aiohttp.ClientSession:
    """Open a session for one API server, with a limit on connections (0: none).

    Raises:
        AccessError: the certificates are unusable, or the credential plugin gives nothing.
    """
    credentials = _Credentials(access)
    is_certified = access.plugin is not None and (await credentials.current()).key_pair is not None
    return aiohttp.ClientSession(
        # TLS asks for a certificate once per connection. Where a plugin issues them, none is kept for the next one.
        connector=aiohttp.TCPConnector(ssl=credentials.tls, limit=max_connections, force_close=is_certified),
        headers={"User-Agent": user_agent},
        middlewares=[*middlewares, credentials.authenticate],
        response_class=response_class,
        proxy=access.proxy_url,
    )


class _Credentials:
    """What identifies a user at the moment."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._issued: Issued | None = None
        self._running = asyncio.Lock()
        """Held while the plugin runs: requests that wait for it share its answer."""
        self.tls = _tls(access)

    async def current(self, rejected: Issued | None = None) -> Issued:
        """Return the credentials to send now, others than those that the server rejected, if there are others."""
        if self._access.plugin is None:
            return Issued(self._token())
        async with self._running:
            known = self._issued
            if known is None or known is rejected or known.expires_s < time.time() + _MARGIN_S:
                self._issued = known = await self._access.plugin.run()
                if known.key_pair is not None:
                    _load_key_pair(self.tls, known.key_pair)
            return known

    async def authenticate(self, request: aiohttp.ClientRequest, handler: ClientHandlerType) -> aiohttp.ClientResponse:
        """Sign a request as middleware, and repeat it once where the server knows the credentials no longer."""
        issued = await self.current()
        request.server_hostname = self._access.server_name
        _sign(request, issued)
        response = await handler(request)
        if response.status != 401 or (renewed := await self.current(rejected=issued)) == issued:
            return response
        response.release()
        _sign(request, renewed)
        return await handler(request)

    def _token(self) -> str | None:
        if self._access.token_file is None:
            return self._access.token
        try:
            return self._access.token_file.read_text().strip()
        except OSError as error:
            raise AccessError(f"the token file cannot be read: {error}") from error


def _sign(request: aiohttp.ClientRequest, issued: Issued) -> None:
    if issued.token is not None:
        request.headers["Authorization"] = f"Bearer {issued.token}"


def _tls(access: Access) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif access.ca is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cadata=access.ca.decode())
        if access.certificate is not None and access.key is not None:
            _load_key_pair(context, access.key + b"\n" + access.certificate)
    except (ssl.SSLError, ValueError) as error:
        raise AccessError(f"the certificates for {access.server} cannot be used: {error}") from error
    return context


def _load_key_pair(context: ssl.SSLContext, key_pair: bytes) -> None:
    # The ssl module takes key pairs from files only.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "client.pem"
        path.touch(mode=0o600)
        path.write_bytes(key_pair)
        context.load_cert_chain(path)
