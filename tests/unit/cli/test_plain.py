"""Text of the cluster does nothing to a terminal, and tells no password."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from longshore_client.errors import ClientError
from longshore_client.explained import explain
from longshore_client.kube import Kube
from longshore_client.plain import plain, plain_json
from longshore_client.view import job_view
from longshore_kube.blocking import Blocking
from longshore_kube.errors import KubeError, Unreachable
from tests.contract.kube_client.script import Script, access_to
from tests.unit.cli.samples import at_step, condition, rljob

ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31m\rhidden\u202etxt"


@asynccontextmanager
async def cluster(body: bytes) -> AsyncIterator[Kube]:
    """One that answers every request so."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body)

    async with access_to(Script(*[answer] * 4)) as access:
        kube = Blocking(access, "test")
        yield Kube(kube, "team")
        await asyncio.to_thread(kube.close)


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    assert not set(plain(text + ATTACK)) & set("\x1b\x9b\r\x07\x08\x7f\x85\u202e\u2066")


def test_what_was_there_is_spelled_out() -> None:
    assert plain("a\tb\n\x1b[31mred\x9b\u202e") == "a\tb\n\\x1b[31mred\\x9b\\u202e"


async def test_status_conditions_logs_and_errors_are_made_plain() -> None:
    job = rljob(at_step(1), conditions=(condition("Failed", "True", message=ATTACK),))
    async with cluster(json.dumps(job).encode()) as kube:
        view = job_view(await asyncio.to_thread(kube.job, "demo"))
    assert view.status.conditions[0].message == plain(ATTACK)
    async with cluster(ATTACK.encode()) as kube:
        assert await asyncio.to_thread(lambda: list(kube.log_lines("demo-coordinator"))) == [plain(ATTACK)]
    assert ClientError(ATTACK, ATTACK).message == ClientError(ATTACK, ATTACK).fix == plain(ATTACK)


def test_passwords_in_addresses_are_left_out() -> None:
    assert plain("ask http://user:s3cret@grader:80/x, or me@home") == "ask http://grader:80/x, or me@home"
    assert plain_json({"a": ["https://t0ken@x", 1, None]}) == {"a": ["https://x", 1, None]}


@pytest.mark.parametrize("data", [b"<html>login</html>", b"[1]", b"null", b"\xff\xfe", b"[" * 100_000])
async def test_an_answer_of_something_else_is_a_sentence(data: bytes) -> None:
    async with cluster(data) as kube:
        with pytest.raises(KubeError) as caught:
            await asyncio.to_thread(kube.job, "demo")
    assert "The API server cannot be understood: the " in explain(caught.value).message


def test_an_address_that_does_not_answer_shows_no_password() -> None:
    error = Unreachable("https://user:s3cret@server does not answer: it is away")
    assert explain(error).message == "The API server https://server does not answer: it is away."


def test_a_runtime_status_that_cannot_be_read_hides_nothing_else() -> None:
    view = job_view(rljob({"step": "many"}, phase="Failed", conditions=(condition("Failed", "True", "UserError"),)))
    assert (view.phase, view.status.conditions[0].reason, view.runtime.step) == ("Failed", "UserError", 0)
