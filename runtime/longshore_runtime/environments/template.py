"""A process with the module of an environment imported, whose forks are episodes (`rewards.fork_template`).

`processes` starts one for each environment. It imports the module once, so what the import loads is shared by all
episodes until they change it. Threads that the import starts do not run in episodes.
"""

import contextlib
import functools
import importlib
import inspect
import io
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from longshore.api.environment import Environment, EnvironmentKind
from longshore_runtime.environments import episode
from longshore_runtime.environments.episode import ImportedEnvironment
from longshore_runtime.environments.tools import BadTools, Schema, Tool, methods_of, schemas_of, schemas_of_class
from longshore_runtime.rewards.failure_text import error_text, error_with_place
from longshore_runtime.rewards.fork_template import Run, serve
from longshore_runtime.rewards.kinds.python import imported

_BUILT_IN: Final = "longshore_runtime.tasks.guessing:Guessing"
"""Environment of kind Task."""


class CannotImport(Exception):
    """Raised when no episode of the environment can begin; the message is one sentence that names the field."""


def main(control: int, options: str) -> None:
    """Fork for every episode.

    Args:
        control: file descriptor of the socket of the parent.
        options: the environment, a directory of modules or null, and the address of its server or null, as JSON.
    """
    os.set_inheritable(control, False)
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    answers, arguments = socket.socket(fileno=control), json.loads(options)
    environment, modules = Environment.model_validate(arguments["environment"]), arguments["modules"]
    if modules:
        sys.path.insert(0, modules)
    _share_path(modules)
    try:
        run = _work_of(environment, arguments["url"])
    except CannotImport as error:
        answers.sendall(str(error).encode())
        return
    if (own_tools := sys.modules.get("longshore_runtime.tools")) is not None:  # Its import starts a sandbox.
        own_tools.limit_calls(environment.call_timeout_s)
    serve(answers, run)


def _share_path(modules: str | None) -> None:
    """Let programs that episodes start import what this process can, although they work in other directories."""
    given = os.environ.get("PYTHONPATH")
    paths = [modules or Path.cwd(), *(given.split(os.pathsep) if given else ())]
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))


def _work_of(environment: Environment, url: str | None) -> Run:
    """Import an environment and return the work of its forks; raises CannotImport."""
    name, import_path = environment.name, environment.import_path
    if url is not None:
        from longshore_runtime.environments.openenv import OpenEnvironment

        factory = functools.partial(OpenEnvironment, url, environment.call_timeout_s)
        return functools.partial(episode.main, ImportedEnvironment(name, factory, (), []))
    if not environment.is_agent:
        import_path = _BUILT_IN if environment.kind is EnvironmentKind.TASK else import_path
        return functools.partial(episode.main, import_environment(name, import_path, environment.tools or ()))
    from longshore_runtime.environments import agent  # Imports a server, which other environments do not need.

    if environment.verifiers is not None:
        try:
            work = agent.VerifiersServer(environment.verifiers).play
        except FileNotFoundError as error:
            python = environment.verifiers.python
            problem = f"{python!r} is not a program of this machine; `longshore check` takes another with --python"
            raise CannotImport(f"{environment.code_field}.python: {problem}") from error
        except (OSError, ValueError) as error:
            raise CannotImport(f"{environment.code_field}: it cannot be loaded ({error_text(error)})") from error
    elif import_path is not None:
        work = functools.partial(agent.run_function, _imported(environment.code_field, import_path))
        _import_what_clients_import()
    else:
        work = functools.partial(agent.run_program, environment.command or ())
    return functools.partial(agent.main, agent.ImportedAgent(name, work, environment.call_timeout_s))


def _import_what_clients_import() -> None:
    """Import what a client of the API imports when it is used: 0.1 CPU seconds and 8 MiB in every episode otherwise."""
    if (openai := sys.modules.get("openai")) is None:
        return
    # What fails here fails in the episode, which says so.
    with contextlib.suppress(Exception), openai.OpenAI(api_key="none", base_url="http://127.0.0.1") as client:
        _ = client.chat.completions, client.responses


def import_environment(name: str, import_path: str | None, tools: Sequence[str]) -> ImportedEnvironment:
    """Import the class at `import_path`, or without one the functions at `tools`; raises CannotImport."""
    field = f"environments[{name}].{'tools' if import_path is None else 'importPath'}"
    functions = [_imported(field, path) for path in tools]
    factory = None if import_path is None else _imported(field, import_path)
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random")  # Every episode seeds it, and would import it.
    if inspect.isclass(factory) and not callable(getattr(factory, "reset", None)):
        raise CannotImport(f"{field}: {import_path!r} has no method reset(**row), which begins an episode; add it")
    try:
        return ImportedEnvironment(name, factory, functions, _in_a_fork(lambda: _schemas(factory, functions)))
    except BadTools as error:
        raise CannotImport(f"{field}: {error}") from error


def _schemas(factory: Callable[[], Any] | None, functions: Sequence[Tool]) -> list[Schema]:
    if factory is None:
        return schemas_of(functions)
    if inspect.isclass(factory):
        return schemas_of_class(factory)
    try:
        return schemas_of(methods_of(factory()))
    except Exception as error:
        raise BadTools(f"no instance to describe can be made ({error_with_place(error)})") from error


def _in_a_fork(describe: Callable[[], list[Schema]]) -> list[Schema]:
    """Return what a function returns, which imports more than every episode should hold; raises BadTools."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.setpgid(0, 0)  # What an instance has started ends with this process.
            if "torch" not in sys.modules:  # Then no argument is a tensor, and its import takes seconds.
                chat_template_utils: Any = importlib.import_module("transformers.utils.chat_template_utils")
                chat_template_utils.is_torch_available = lambda: False
            try:
                said: dict[str, Any] = {"schemas": describe()}
            except BadTools as error:
                said = {"error": str(error)}
            with os.fdopen(write, "w") as file:
                json.dump(said, file)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        said = json.loads(file.read() or '{"error": "the process that describes its tools has ended"}')
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # The number is its own until it is waited for.
    os.waitpid(pid, 0)
    if "error" in said:
        raise BadTools(said["error"])
    schemas: list[Schema] = said["schemas"]
    return schemas


def _imported(field: str, path: str) -> Any:
    try:
        found = imported(path)
    except BaseException as error:
        raise CannotImport(f"{field}: {path!r} cannot be imported ({error_with_place(error)})") from error
    if not callable(found):
        raise CannotImport(f"{field}: {path!r} cannot be called; name a class or function")
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
