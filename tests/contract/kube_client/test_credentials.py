"""Credentials that rotate, expire or come from a plugin, against a server that looks at each request's."""

import asyncio
import json
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from longshore_devcluster.apiserver.pki import Authority, load_or_create_key
from longshore_kube.access import Access
from longshore_kube.client import Client
from longshore_kube.errors import AccessError, ApiError, Unreachable
from longshore_kube.plugin import ExecPlugin
from longshore_kube.resources import PODS
from tests.contract.kube_client.script import Script, access_to, failure, page

V1 = "client.authentication.k8s.io/v1"
REFUSED = failure(401, "Unauthorized")


def accepted(*_: object) -> Any:
    return page([], 1)


async def ask(client: Client) -> None:
    await client.get(PODS, "demo", "team")


class Plugin:
    """A program that counts its runs and answers with a token of that number."""

    def __init__(self, folder: Path, *, lasts: timedelta | None = None, body: str = "") -> None:
        self._runs, path = folder / "runs", folder / "plugin"
        status: dict[str, str] = {"token": "token-$n"}
        if lasts is not None:
            status["expirationTimestamp"] = (datetime.now(UTC) + lasts).isoformat()
        answer = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status})
        path.write_text(
            f'#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" >> {self._runs}\nn=$(wc -l < {self._runs})\n'
            + (body or f"cat <<END\n{answer}\nEND\n")
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self.plugin = ExecPlugin((str(path),), V1, cluster='{"server": "here"}')

    @property
    def reviews(self) -> list[Any]:
        """KUBERNETES_EXEC_INFO of each run."""
        return [json.loads(line) for line in self._runs.read_text().splitlines()] if self._runs.exists() else []


class TestTokenFiles:
    async def test_a_rotated_token_is_sent_from_the_next_request_on(self, tmp_path: Path) -> None:
        script, token = Script(accepted(), accepted()), tmp_path / "token"
        token.write_text("first\n")
        async with access_to(script, token_file=token) as access, Client(access, "test") as client:
            await ask(client)
            token.write_text("second\n")
            await ask(client)
        assert script.tokens == ["Bearer first", "Bearer second"]

    async def test_a_token_that_rotates_while_it_is_refused_is_read_again(self, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_text("old")

        async def rotates(request: web.Request) -> web.StreamResponse:
            token.write_text("new")
            return await REFUSED(request)

        script = Script(rotates, accepted())
        async with access_to(script, token_file=token) as access, Client(access, "test") as client:
            await ask(client)
        assert script.tokens == ["Bearer old", "Bearer new"]

    async def test_a_token_that_is_gone_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(AccessError, match="the token file cannot be read"):
            async with Client(Access("http://127.0.0.1:1", token_file=tmp_path / "none"), "test") as client:
                await ask(client)

    async def test_an_expired_token_that_nobody_renews_is_sent_once(self) -> None:
        script = Script(REFUSED)
        async with access_to(script, token="stale") as access, Client(access, "test") as client:
            with pytest.raises(ApiError, match="does not accept the credentials"):
                await ask(client)
        assert len(script.requests) == 1


class TestPlugins:
    async def test_it_runs_once_for_many_requests_and_gets_the_cluster(self, tmp_path: Path) -> None:
        issuer, script = Plugin(tmp_path, lasts=timedelta(hours=1)), Script(*[accepted()] * 8)
        async with access_to(script, plugin=issuer.plugin) as access, Client(access, "test") as client:
            await asyncio.gather(*(ask(client) for _ in range(8)))
        assert script.tokens == ["Bearer token-1"] * 8
        (info,) = issuer.reviews
        assert (info["kind"], info["apiVersion"]) == ("ExecCredential", V1)
        assert info["spec"] == {"interactive": False, "cluster": {"server": "here"}}

    async def test_it_runs_again_when_its_credentials_expire(self, tmp_path: Path) -> None:
        issuer, script = Plugin(tmp_path, lasts=timedelta(seconds=1)), Script(accepted(), accepted())
        async with access_to(script, plugin=issuer.plugin) as access, Client(access, "test") as client:
            await ask(client)
            await ask(client)
        assert script.tokens == ["Bearer token-2", "Bearer token-3"], "the first was for opening the session"

    async def test_it_runs_again_when_the_server_refuses_what_it_gave(self, tmp_path: Path) -> None:
        issuer, script = Plugin(tmp_path), Script(REFUSED, accepted(), accepted())
        async with access_to(script, plugin=issuer.plugin) as access, Client(access, "test") as client:
            await ask(client)
            await ask(client)
        assert script.tokens == ["Bearer token-1", "Bearer token-2", "Bearer token-2"]

    async def test_many_refused_requests_run_it_once_more(self, tmp_path: Path) -> None:
        """Each sees that another one has renewed the token meanwhile."""

        class OldTokensAreRefused(Script):
            async def handle(self, request: web.Request) -> web.StreamResponse:
                self.requests.append(request)
                answer = REFUSED if request.headers["Authorization"] == "Bearer token-1" else accepted()
                return await answer(request)

        issuer, script = Plugin(tmp_path), OldTokensAreRefused()
        async with access_to(script, plugin=issuer.plugin) as access, Client(access, "test") as client:
            await asyncio.gather(*(ask(client) for _ in range(8)))
        assert len(issuer.reviews) == 2

    async def test_two_refusals_are_final(self, tmp_path: Path) -> None:
        issuer, script = Plugin(tmp_path), Script(REFUSED, REFUSED)
        async with access_to(script, plugin=issuer.plugin) as access, Client(access, "test") as client:
            with pytest.raises(ApiError, match="does not accept the credentials"):
                await ask(client)

    @pytest.mark.parametrize(
        ("body", "sentence"),
        [("echo 'log in first' >&2; exit 3", "failed with exit code 3: log in first"),
         ("exit 1", "failed with exit code 1: no reason given"),
         ("echo hello", "is no ExecCredential"),
         (f'echo \'{{"apiVersion": "{V1}beta1", "kind": "ExecCredential", "status": {{}}}}\'', "not of client"),
         (f'echo \'{{"apiVersion": "{V1}", "kind": "ExecCredential", "status": {{}}}}\'', "neither a token nor"),
         (f'echo \'{{"apiVersion": "{V1}", "kind": "ExecCredential", "status": null}}\'', "is no ExecCredential")],
    )  # fmt: skip
    async def test_what_goes_wrong_with_it_is_one_sentence(self, tmp_path: Path, body: str, sentence: str) -> None:
        with pytest.raises(AccessError, match=sentence) as caught:
            await Plugin(tmp_path, body=body).plugin.run()
        assert "\n" not in str(caught.value)

    async def test_one_that_is_not_installed_says_how_to_get_it(self) -> None:
        missing = ExecPlugin(("get-a-token-of-nowhere",), V1, install_hint="Install it.")
        with pytest.raises(AccessError, match="cannot be run: No such file or directory; Install it"):
            await missing.run()

    async def test_one_that_asks_questions_needs_a_terminal(self) -> None:
        with pytest.raises(AccessError, match="needs a terminal"):
            await ExecPlugin(("true",), V1, interactive_mode="Always").run()

    async def test_one_that_hangs_is_ended(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("longshore_kube.plugin._LIMIT_S", 0.2)
        with pytest.raises(AccessError, match="did not end within"):
            await Plugin(tmp_path, body="exec sleep 1000").plugin.run()


class Certified:
    """Answers with the name in the client's certificate. Its own names 127.0.0.1 and kubernetes.default."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "pki")
        self._context = self.authority.serving_context("127.0.0.1")
        self._context.load_verify_locations(self.authority.path)
        self._context.verify_mode = ssl.CERT_OPTIONAL
        self._folder = folder
        self.refused: set[str] = set()
        """Names that are not known any more."""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert") or {}
        names = [value for part in peer.get("subject", ()) for key, value in part if key == "commonName"]
        if set(names) & self.refused:
            return await REFUSED(request)
        return web.json_response({"names": names})

    @asynccontextmanager
    async def access(self, **options: Any) -> AsyncIterator[Access]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        server = TestServer(app, scheme="https")
        await server.start_server(ssl=self._context)
        try:
            ca = self.authority.path.read_bytes()
            yield Access(f"https://127.0.0.1:{server.port}", **{"ca": ca, **options})
        finally:
            await server.close()

    def issue(self, name: str) -> tuple[str, str]:
        """A client's key and certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.load_pem_x509_certificate(self.authority.path.read_bytes()).subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .sign(load_or_create_key(self._folder / "pki" / "ca.key"), hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return private.decode(), certificate.public_bytes(serialization.Encoding.PEM).decode()


async def names_seen(client: Client) -> Any:
    return (await client.get(PODS, "demo", "team"))["names"]


class TestCertificates:
    async def test_a_client_certificate_is_shown(self, tmp_path: Path) -> None:
        server = Certified(tmp_path)
        key, certificate = (part.encode() for part in server.issue("me"))
        async with server.access(key=key, certificate=certificate) as access, Client(access, "test") as client:
            assert await names_seen(client) == ["me"]

    async def test_a_plugin_renews_certificates_too(self, tmp_path: Path) -> None:
        """TLS asks for a certificate once per connection, so a new one needs a new connection."""
        server = Certified(tmp_path)
        for number, name in enumerate(("first", "second"), 1):
            key, certificate = server.issue(name)
            status = {"clientKeyData": key, "clientCertificateData": certificate}
            answer = {"apiVersion": V1, "kind": "ExecCredential", "status": status}
            (tmp_path / f"answer-{number}").write_text(json.dumps(answer))
        issuer = Plugin(tmp_path, body=f"cat {tmp_path}/answer-$n")
        async with server.access(plugin=issuer.plugin) as access, Client(access, "test") as client:
            assert await names_seen(client) == ["first"]
            server.refused.add("first")
            assert await names_seen(client) == ["second"]

    async def test_the_servers_certificate_may_name_something_else_than_its_address(self, tmp_path: Path) -> None:
        server = Certified(tmp_path)
        async with server.access(server_name="kubernetes.default") as access, Client(access, "test") as client:
            assert await names_seen(client) == []
        async with server.access(server_name="elsewhere") as access, Client(access, "test") as client:
            with pytest.raises(Unreachable, match="Hostname mismatch"):
                await names_seen(client)

    async def test_an_unknown_authority_is_said_and_may_be_ignored(self, tmp_path: Path) -> None:
        server = Certified(tmp_path)
        async with server.access(ca=None) as access, Client(access, "test") as client:
            with pytest.raises(Unreachable, match="certificate verify failed"):
                await names_seen(client)
        async with server.access(ca=None, insecure=True) as access, Client(access, "test") as client:
            assert await names_seen(client) == []

    async def test_certificates_that_are_none_are_said(self) -> None:
        with pytest.raises(AccessError, match=r"the certificates for https://127\.0\.0\.1:1 cannot be used"):
            async with Client(Access("https://127.0.0.1:1", ca=b"not PEM"), "test"):
                pass


async def test_requests_go_through_the_proxy() -> None:
    script = Script(accepted())
    async with access_to(script) as proxy:
        access = Access("http://api.invalid:6443", proxy_url=proxy.server)
        async with Client(access, "test") as client:
            await ask(client)
    assert script.requests[0].host == "api.invalid"
