"""Servers of OpenEnv's own package: the one that the page shows, by its commands, and one with tools by MCP.

The package wants many others, so `make openenv-server` installs it in an environment of its own.
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from benchmarks.measured_process import free_port

from longshore_runtime.environments.pod_protocol import Acted, Finished, Opened
from tests.contract.environments.environment_pods import Client, connected, serving, texts
from tests.contract.environments.test_openenv import openenv
from tests.contract.how_to.pages import PAGES, ROOT, commands

PACKAGE: Final = ROOT / ".venv" / "openenv" / "bin"
START_LIMIT_S: Final = 300.0
TOOLS: Final = """
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State


class Counter(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("counter")

        @mcp.tool
        def add(number: int) -> int:
            "Add to the counter."
            self.value += number
            return self.value

        super().__init__(mcp)

    def reset(self, seed=None, episode_id=None, start: int = 0, **kwargs):
        self.value = start
        return Observation()

    async def step_async(self, action, timeout_s=None, **kwargs):
        observation = await super().step_async(action, timeout_s, **kwargs)
        return observation.model_copy(update={"reward": 0.5, "done": self.value > 10})

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation()

    @property
    def state(self):
        return State()


app = create_app(Counter, CallToolAction, CallToolObservation, max_concurrent_envs=2)
"""


@pytest.fixture(scope="module", autouse=True)
def package() -> None:
    if not (PACKAGE / "openenv").is_file():
        pytest.skip(f"there is no {PACKAGE}: install it with make openenv-server")


@contextmanager
def listening(command: str, directory: Path, port: int) -> Iterator[None]:
    """A command that serves at a port."""
    environment = os.environ | {"PATH": f"{PACKAGE}:{os.environ['PATH']}"}
    with subprocess.Popen(["bash", "-euc", command], cwd=directory, env=environment, start_new_session=True) as server:
        try:
            deadline_s = time.monotonic() + START_LIMIT_S
            while not answers(port):
                assert server.poll() is None
                assert time.monotonic() < deadline_s
            yield
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def played(port: int, play: Callable[[Client], Awaitable[None]]) -> None:
    async def connect(pod: int) -> None:
        async with connected(pod) as client:
            await play(client)

    with serving(openenv(f"http://127.0.0.1:{port}")) as pod:
        asyncio.run(connect(pod))


def test_commands_of_the_page_make_a_server_and_play_an_episode(tmp_path: Path) -> None:
    page = (PAGES / "train-agents.md").read_text(encoding="utf-8")
    section = page.partition("## An OpenEnv server\n")[2].partition("\n## ")[0]
    port = free_port()
    section = section.replace("8000", str(port))
    for name, language in (("job.yaml", "yaml"), ("train.jsonl", "json")):
        assert f"`{name}`" in section
        found = re.search(rf"^ *```{language}\n(.*?)^ *```", section, re.MULTILINE | re.DOTALL)
        assert found is not None
        (tmp_path / name).write_text(re.sub("^    ", "", found[1], flags=re.MULTILINE))
    make, serve, check = [one.text for one in commands(section)]
    environment = {"PATH": f"{PACKAGE}:{os.environ['PATH']}"}
    subprocess.run(make.split(), cwd=tmp_path, env=os.environ | environment, check=True, capture_output=True)
    with listening(serve, tmp_path, port):
        program, *arguments = check.split()
        assert program == "longshore"
        command = [sys.executable, "-m", "longshore_cli", *arguments]
        checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "✓ environments        echo: 0 tools, reset took " in checked.stdout

        async def play(client: Client) -> None:
            opened = await client.open(1, "game", prompt="p")
            assert isinstance(opened, Opened)
            assert opened.observation == '\n\n{"echoed_message":"Echo environment ready!","message_length":0}'
            waiting = asyncio.create_task(client.open(2, "game"))
            assert texts(await client.say(1, "hello")) == ['{"echoed_message":"hello","message_length":5}']
            assert texts(await client.say(1, "x")) == ['{"echoed_message":"x","message_length":1}']
            finished = await client.finish(1, wants_state=True)
            assert isinstance(finished, Finished) and finished.state is not None
            assert (finished.reward, json.loads(finished.state)["step_count"]) == (pytest.approx(0.6), 2)
            assert isinstance(await waiting, Opened), "the only session is free again"

        played(port, play)


def test_tools_by_mcp_are_called_in_a_session(tmp_path: Path) -> None:
    (tmp_path / "counter.py").write_text(TOOLS)
    port = free_port()
    with listening(f"exec python -m uvicorn counter:app --port {port}", tmp_path, port):

        async def play(client: Client) -> None:
            opened = await client.open(1, "game", prompt="p", start=3)
            assert isinstance(opened, Opened)
            (tool,) = opened.tools
            assert (tool["function"]["name"], tool["function"]["description"]) == ("add", "Add to the counter.")
            assert texts(await client.call(1, ("add", {"number": 2}), ("add", {"number": 1}))) == ["5", "6"]
            failed = await client.call(1, ("add", {"figure": 1}))
            assert isinstance(failed, Acted)
            assert failed.num_failed_calls == 1
            assert "Unexpected keyword argument" in failed.observations[0].content
            assert texts(await client.call(1, ("add", {"number": 7}))) == []
            assert await client.finish(1) == Finished(1, 2.0)

        played(port, play)
