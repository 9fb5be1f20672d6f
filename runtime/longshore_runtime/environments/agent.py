"""The process of one episode whose agent asks the model: a function, or a program that this process starts.

    coordinator's questions ──► thread: `_Episode.answer` ◄── `Gateway.session` ◄── HTTP ── agent

A function runs in the main thread, as it would in a program. Either way it works in a directory of its own, which the
pod removes after the episode.
"""

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from longshore.api.environment import VerifiersEnvironment
from longshore_runtime.environments import verifiers_program
from longshore_runtime.environments.episode import seed_generators
from longshore_runtime.environments.final_state import written_state
from longshore_runtime.environments.gateway import HOST, AgentEnded, Gateway, ended_with
from longshore_runtime.environments.openai_chat import ModelTurn
from longshore_runtime.environments.pod_protocol import (
    Acted,
    Answer,
    Asked,
    Broken,
    FailureCause,
    Finished,
    ToolCall,
    encode,
)
from longshore_runtime.environments.processes import agent_directory, remove_directory
from longshore_runtime.rewards.child_pipes import take_pipes
from longshore_runtime.rewards.failure_text import error_with_place, one_line
from longshore_runtime.rewards.numbers import optional_reward
from longshore_runtime.rewards.scoring import MAX_SENTENCE
from longshore_runtime.rewards.signatures import EventLoop
from longshore_runtime.sandbox import landlock
from longshore_runtime.sandbox.layers import LayerUnavailable

log = structlog.get_logger()

ROW: Final = "LONGSHORE_ROW"
"""Variable with the path of the file that has the row as JSON."""
SEED: Final = "LONGSHORE_SEED"
_API: Final = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY")
"""Variables with which clients find the API: address, the same for those of older versions, key."""
_NO_PROXY: Final = ("NO_PROXY", "no_proxy")
"""Variables with the hosts that clients reach without the proxy of the pod."""
_LINE_BYTES: Final = 8192
_OUTPUT_S: Final = 1.0
"""Seconds from the end of a program to that of its output, which other processes may hold open."""
_ANSWER_BYTES: Final = 1 << 16
_LAST_SHARE: Final = 0.5
"""Share of `callTimeoutSeconds` that an agent has to end once the model answers it no more."""


@dataclass(frozen=True)
class ImportedAgent:
    """What an episode is made of."""

    name: str
    work: "Callable[[Mapping[str, Any]], AgentEnded]"
    """Function that runs an agent for a row, to its end."""
    call_timeout_s: float


def main(agent: ImportedAgent, requests: int, replies: int) -> None:
    """Serve one episode until the pipe of requests ends. The last two arguments are file descriptors."""
    with contextlib.suppress(LayerUnavailable):
        landlock.isolate()  # From the other episodes of the pod, whose processes have the same user.
    lines, say = take_pipes(requests, replies)
    if not (first := lines.readline()):
        return  # The pod has only tried whether it can fork.
    opening = json.loads(first)
    seed_generators(opening["seed"])
    gateway = Gateway()
    directory = agent_directory(os.getpid())
    remove_directory(directory)  # Of an episode that had the same number.
    directory.mkdir(mode=0o700)
    os.chdir(directory)
    (directory / "row.json").write_text(json.dumps(opening["row"]), encoding="utf-8")
    without_proxy = [given for name in _NO_PROXY if (given := os.environ.get(name))]
    os.environ |= {
        **dict(zip(_API, (gateway.base_url, gateway.base_url, gateway.key), strict=True)),
        ROW: str(directory / "row.json"),
        SEED: str(opening["seed"]),
        **dict.fromkeys(_NO_PROXY, ",".join([*without_proxy, HOST])),
    }

    def converse() -> None:
        episode = _Episode(agent, gateway)
        say(encode(episode.begin(opening["episode"])) + b"\n")
        while line := lines.readline():
            say(encode(episode.answer(json.loads(line))) + b"\n")

    conversing = threading.Thread(target=converse)
    conversing.start()
    gateway.session.news.put(agent.work(opening["row"]))
    conversing.join()


class _Episode:
    """The episode, by questions and answers of `pod_protocol`."""

    def __init__(self, agent: ImportedAgent, gateway: Gateway) -> None:
        self._agent = agent
        self._session = gateway.session
        self._ended: AgentEnded | None = None

    def begin(self, number: int) -> Answer:
        """Return what the agent asks first."""
        answer = self._next(number)
        if isinstance(answer, Acted):
            return self._broken(number, "ended before it asked the model")
        return answer

    def answer(self, question: Mapping[str, Any]) -> Answer:
        """Return the answer to a question: Broken if the agent fails."""
        number = question["episode"]
        if question["kind"] == "Act":
            calls = tuple(ToolCall(**call) for call in question["calls"])
            tokens = question["num_prompt_tokens"], question["num_tokens"]
            self._session.deliver(ModelTurn(0, question["content"], calls, question["is_cut"], *tokens))
            return self._next(number)
        ended = self._ended or self._last_word()
        self._session.end()
        try:
            state = written_state(ended.state) if question["wants_state"] else None
            return Finished(number, ended.reward, state, self._session.unread())
        except ValueError as error:
            return self._broken(number, str(error), "result")

    def _next(self, number: int) -> Answer:
        news = self._session.news.get()
        if isinstance(news, Asked):
            return replace(news, episode=number)
        self._ended = news
        return Acted(number, [], 0) if news.error is None else self._broken(number, news.error, news.cause)

    def _last_word(self) -> AgentEnded:
        """Return the end of an agent that a limit of tokens or turns has ended: its reward is 0 if it gives none.

        What it does then, such as raise the error of its client, is no failure.
        """
        self._session.end()
        news: Asked | AgentEnded | None = None
        with contextlib.suppress(queue.Empty):
            while not isinstance(
                news := self._session.news.get(timeout=_LAST_SHARE * self._agent.call_timeout_s), AgentEnded
            ):
                pass
        return replace(news, reward=news.reward or 0.0) if isinstance(news, AgentEnded) else AgentEnded(0.0)

    def _broken(self, number: int, what: str, cause: FailureCause = "exception") -> Broken:
        return Broken(number, f"environment {self._agent.name}: its agent {what}"[:MAX_SENTENCE], cause=cause)


def run_function(function: Callable[..., Any], row: Mapping[str, Any]) -> AgentEnded:
    """Call a function of the user's for a row."""
    try:
        result = EventLoop().result_of(function(dict(row)))
    except BaseException as error:  # noqa: BLE001 - whatever an agent raises is reported
        return AgentEnded(error=f"raised {error_with_place(error)}")
    try:
        return ended_with(result) if isinstance(result, Mapping) else AgentEnded(optional_reward(result))
    except ValueError as error:
        return AgentEnded(error=str(error), cause="result")


def run_program(command: Sequence[str], _row: Mapping[str, Any]) -> AgentEnded:
    """Run a program, which finds the row in a file."""
    try:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        return AgentEnded(error=f"cannot be started ({error})")
    assert program.stdout is not None
    output, last = program.stdout, [b""]

    def copy_output() -> None:
        while line := output.readline(_LINE_BYTES):
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
            last[0] = line.strip() or last[0]

    copying = threading.Thread(target=copy_output, daemon=True)
    copying.start()
    code = program.wait()
    copying.join(_OUTPUT_S)
    if code == 0:
        return AgentEnded()
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return AgentEnded(error=f"{how}, and wrote last: {one_line(last[0].decode(errors='replace'))}")


class VerifiersServer:
    """The process that has an environment of `verifiers` loaded, whose forks are episodes (`verifiers_program`)."""

    def __init__(self, environment: VerifiersEnvironment) -> None:
        """Start it and wait until it is ready; raises ValueError with the end of a sentence, or OSError."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = [environment.id, json.dumps(environment.arguments), "--control", str(theirs.fileno())]
            process = subprocess.Popen(
                [environment.python, verifiers_program.__file__, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        said = json.loads(self._control.recv(_ANSWER_BYTES) or b'{"error": "its process has ended"}')
        if "error" in said:
            raise ValueError(said["error"])
        log.info("verifiers has loaded an environment", version=said["version"], id=environment.id)
        threading.Thread(target=_end_after, args=(process,), daemon=True).start()

    def play(self, _row: Mapping[str, Any]) -> AgentEnded:
        """Play an episode in a fork, which ends with this process."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                variables = {name: os.environ[name] for name in (*_API, ROW, SEED, *_NO_PROXY)}
                socket.send_fds(self._control, [json.dumps(variables).encode()], [theirs.fileno()])
            said = ours.makefile("rb").read()
        answer = json.loads(said or b'{"error": "its process was killed"}')
        if "error" in answer:
            return AgentEnded(error=f"failed: {answer['error']}")
        try:
            return ended_with(answer)
        except ValueError as error:
            return AgentEnded(error=str(error), cause="result")


def _end_after(process: "subprocess.Popen[bytes]") -> None:
    """End this process once another one has ended; its pod then starts both anew for the next episode."""
    process.wait()
    os._exit(1)
