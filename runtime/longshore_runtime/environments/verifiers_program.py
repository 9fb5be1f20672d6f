"""Run environments of the `verifiers` package, under a Python that has it. Imports nothing of Longshore.

    episode ── socket: variables, and a socket of its own ──► this process ── fork ──► the environment runs
            ◄── its own socket: reward and state, as JSON ───────────────────────────────┘

Importing `verifiers` and loading tasks takes seconds and hundreds of megabytes, so it is done once, and every episode
is a fork. The environment asks the model over the API of its episode, as any agent does. There are two interfaces:
tasksets (from 0.4 on), and environments with `load_environment` (before).
"""

import argparse
import asyncio
import json
import os
import re
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

MODEL = "policy"
KEY = "OPENAI_API_KEY"
_REQUEST_BYTES = 1 << 16
_SHOWN = {"rewards", "metrics", "info", "stop_condition"}
"""What reward functions get of an episode as its final state."""


class Interface(Protocol):
    """One of the two interfaces of the package."""

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Yield a row of data for each task: its prompt, and the task itself."""

    async def play(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        """Play an episode of a task and return its reward and state; raises what makes it fail."""


class Tasksets:
    """The interface of verifiers 0.4: a taskset, and the agents that play its tasks."""

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Load the environment of a taskset; `arguments` are the fields of its configuration."""
        from verifiers.v1.configs.agent import agent_config_fields
        from verifiers.v1.utils.loaders import load_environment, resolve_env_config

        config = {**arguments, "taskset": {**arguments.get("taskset", {}), "id": name}}
        for role in agent_config_fields(resolve_env_config(config)):
            # Elsewhere than here there is no way to the model.
            config[role] = {"runtime": {"type": "subprocess"}, **config.get(role, {})}
        self._environment = load_environment(resolve_env_config(config))

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for task in self._environment.taskset:
            data = task.data
            prompt = data.prompt_text or data.description or data.name or "Begin."
            yield _row(prompt, data.model_dump(mode="json", exclude_none=True))

    async def play(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        from verifiers.v1.clients import ModelContext
        from verifiers.v1.configs.client import EvalClientConfig

        taskset = self._environment.taskset
        kind = taskset.task_type()
        of_task = kind(kind.data_type().model_validate(task), taskset.config.task)
        client = EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var=KEY)
        async with self._environment.serving():
            episode = await self._environment.run_episode(of_task, ModelContext(model=MODEL, client=client))
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors:
            raise RuntimeError(f"{errors[0].type}: {errors[0].message}")
        rewards = [trace.reward for trace in episode.traces]
        shown = [json.loads(trace.model_dump_json(include=_SHOWN, fallback=str)) for trace in episode.traces]
        return {"reward": sum(rewards) / len(rewards), "state": shown[0] if len(shown) == 1 else {"traces": shown}}


class Environments:
    """The interface before verifiers 0.4: an environment that a package loads."""

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Load the environment of a package."""
        import verifiers

        self._environment = verifiers.load_environment(name, **arguments)

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for row in self._environment.get_dataset():
            yield _row(row["prompt"], {key: value for key, value in row.items() if value is not None})

    async def play(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        import verifiers
        from openai import AsyncOpenAI

        # From 0.1.11 on, environments take a client only in the package's own wrapper.
        wrapped = getattr(verifiers, "OpenAIChatCompletionsClient", lambda client: client)
        async with AsyncOpenAI() as client:
            output = await self._environment.run_rollout(task, wrapped(client), MODEL, {})
        if output.get("error") is not None:
            raise RuntimeError(str(output["error"]))
        return {"reward": float(output["reward"]), "state": {key: output[key] for key in _SHOWN if key in output}}


def _row(prompt: Any, task: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row of a task, which has an answer as every row must: its own, or none to compare with."""
    return {"prompt": prompt, "answer": str(task.get("answer", "")), "task": task}


def main() -> None:
    """Write rows of data to standard output, or serve episodes over a socket, which is also told of errors."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("arguments", type=json.loads)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--control", type=int, required=True)
    options = parser.parse_args()
    sys.path.pop(0)  # The directory of this file, whose modules hide others of the same names, such as `openenv`.
    # Whatever the environment prints is part of no protocol.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    control = socket.socket(fileno=options.control)
    try:
        interface = _interface(options.name, options.arguments)
        if options.rows is not None:
            for row in islice(interface.rows(), options.rows):
                out.write(json.dumps(row) + "\n")
            out.flush()
            return
    except BaseException as error:  # noqa: BLE001 - whatever loading raises is reported
        if options.rows is None:
            traceback.print_exc()
        control.sendall(json.dumps({"error": f"{type(error).__name__}: {error}"[:4096]}).encode())
        return
    control.sendall(json.dumps({"version": metadata.version("verifiers")}).encode())
    _serve(control, interface)


def _interface(name: str, arguments: Mapping[str, Any]) -> Interface:
    try:
        version = metadata.version("verifiers")
    except metadata.PackageNotFoundError:
        raise RuntimeError(f"{sys.executable} has no package verifiers; install it there") from None
    parts = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    assert parts is not None, "packages have versions of this form"
    release = tuple(int(part or 0) for part in parts.groups())
    if release < (0, 1, 10):
        raise RuntimeError(f"{sys.executable} has verifiers {version}; install 0.1.10 or newer there")
    return Tasksets(name, arguments) if release >= (0, 4, 0) else Environments(name, arguments)


def _serve(control: socket.socket, interface: Interface) -> None:
    """Fork for every request until nobody holds the other end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Forks need nobody to reap them.
    while True:
        data, files, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return
        if os.fork() == 0:
            control.close()
            _become_episode(interface, json.loads(data), socket.socket(fileno=files[0]))
        for file in files:
            os.close(file)


def _become_episode(interface: Interface, variables: Mapping[str, str], answers: socket.socket) -> None:
    """Play an episode; does not return."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        threading.Thread(target=_end_with, args=(answers,), daemon=True).start()
        os.environ |= variables
        os.chdir(Path(variables["LONGSHORE_ROW"]).parent)
        row = json.loads(Path(variables["LONGSHORE_ROW"]).read_text(encoding="utf-8"))
        answers.sendall(json.dumps(asyncio.run(interface.play(row["task"])), default=str).encode())
    except BaseException as error:  # noqa: BLE001 - whatever an environment raises is reported
        traceback.print_exc()
        answers.sendall(json.dumps({"error": f"{type(error).__name__}: {error}"[:4096]}).encode())
    finally:
        os.killpg(os.getpid(), signal.SIGKILL)  # With everything that the environment has started.


def _end_with(answers: socket.socket) -> None:
    """Kill the process group once the episode has hung up."""
    lifeline = select.poll()
    lifeline.register(answers, select.POLLHUP)
    lifeline.poll()
    os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
