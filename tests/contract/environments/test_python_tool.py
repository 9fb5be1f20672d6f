"""The tool that executes Python: each episode has an interpreter of its own, in the sandbox, from its first call on."""

import asyncio
from collections.abc import Iterator
from typing import Final

import psutil
import pytest

from longshore.api.environment import PYTHON_TOOL
from longshore_runtime.environments.pod_protocol import Broken, Opened
from longshore_runtime.sandbox.layers import Layer
from longshore_runtime.sandbox.worker import START
from tests.commands import command_of
from tests.contract.environments.environment_pods import USERS, Client, connected, python, serving, texts
from tests.contract.sandbox.conftest import WITHOUT_NAMESPACES, available, need

__all__ = ["available"]

SHORT_S: Final = 1.5


@pytest.fixture(scope="module")
def port(available: frozenset[Layer]) -> Iterator[int]:
    """One pod for all tests."""
    need(WITHOUT_NAMESPACES, available)
    tools = [PYTHON_TOOL, f"{USERS}:double"]
    with serving(python("code", tools=tools), python("short", tools=tools, callTimeoutSeconds=SHORT_S)) as port:
        yield port


async def said(client: Client, episode: int, code: str) -> str:
    return "".join(texts(await client.call(episode, ("python", {"code": code}))))


def test_state_is_of_the_episode_and_other_tools_are_beside_it(port: int) -> None:
    async def episodes() -> None:
        async with connected(port) as client:
            for number in (1, 2):
                opened = await client.open(number, "code")
                assert isinstance(opened, Opened), opened
            assert [tool["function"]["name"] for tool in opened.tools] == ["python", "double"]
            assert await said(client, 1, "x = 6 * 7") == ""
            assert await said(client, 1, "x") == "42\n"
            assert "NameError: name 'x' is not defined" in await said(client, 2, "x")
            both = await client.call(1, ("python", {"code": "x += 1"}), ("python", {"code": "x"}))
            assert texts(both) == ["", "43\n"]
            assert texts(await client.call(2, ("double", {"number": 4}))) == ["8"]

    asyncio.run(episodes())


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("while True: pass", "a call took longer than 1.2 s"),
        ("exit()", "it exited with status 0"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "it was killed by signal 9 (Killed)"),
        ("while True: print('x' * 10_000)", "a call wrote more than 1,024 KiB"),
    ],
)
def test_call_that_ends_its_interpreter_is_answered_and_the_episode_goes_on(port: int, code: str, reason: str) -> None:
    async def episodes() -> None:
        async with connected(port) as client:
            for number in (1, 2):
                await client.open(number, "short")
                await said(client, number, "kept = 1")
            text = await said(client, 1, code)
            assert text.endswith(f"[The interpreter has ended: {reason}. Its variables and imports are lost.]")
            assert "NameError" in await said(client, 1, "kept")
            assert await said(client, 2, "kept") == "1\n"

    asyncio.run(episodes())


def test_interpreter_starts_with_the_first_call_and_ends_with_its_episode(port: int) -> None:
    def processes() -> set[psutil.Process]:
        return {one for one in psutil.Process().children(recursive=True) if START in command_of(one)}

    async def episode() -> None:
        async with connected(port) as client:
            await client.open(0, "code")
            before = processes()
            await client.open(1, "code")
            assert processes() == before
            await said(client, 1, "1")
            interpreter = processes() - before
            assert interpreter
            await client.close(1)
            assert psutil.wait_procs(interpreter, timeout=30)[1] == []

    asyncio.run(episode())


def test_sandbox_that_has_died_breaks_the_episode_and_the_next_one_has_another(port: int) -> None:
    async def episodes() -> None:
        async with connected(port) as client:
            await client.open(1, "code")
            await said(client, 1, "1")
            for one in psutil.Process().children(recursive=True):
                if START in command_of(one):
                    one.kill()
            broken = await client.call(1, ("python", {"code": "1"}))
            assert isinstance(broken, Broken)
            assert "a tool raised SystemExit: the sandbox of an interpreter has failed" in broken.error
            await client.open(2, "code")
            assert await said(client, 2, "2") == "2\n"

    asyncio.run(episodes())
