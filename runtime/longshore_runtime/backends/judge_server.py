"""Run vLLM's OpenAI-compatible server as a process of its own.

It runs as `python -m longshore_runtime.backends.judge_server OPTIONS`, with the options as JSON. The bearer token comes
through VLLM_API_KEY, which vLLM reads by itself, and appears on no command line.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import ValidationError

from longshore.api.contract import ExitCode
from longshore_runtime.backends.vllm_environment import vllm_environment
from longshore_runtime.process.logs import configure_logging

TOKEN_VARIABLE: Final = "VLLM_API_KEY"
READY_TIMEOUT_S: Final = 3_600
"""Longest time in which a model is loaded."""

_MAX_SENTENCE_LENGTH: Final = 300
_TEMPLATE_FILES: Final = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True)
class ServerOptions:
    """Settings that determine a server."""

    model: str
    """Path of a Hugging Face directory."""
    name: str
    """Name by which requests call the model."""
    host: str
    port: int
    tp_size: int
    accelerator: bool
    """Whether GPUs are assigned; otherwise it runs on the CPU."""
    reason_file: str
    """File that gets one sentence when the model cannot be served."""


def server_command(options: ServerOptions) -> list[str]:
    """Return the command line of the server."""
    return [sys.executable, "-m", "longshore_runtime.backends.judge_server", orjson.dumps(options).decode()]


def server_environment(token: str, *, accelerator: bool) -> dict[str, str]:
    """Return the environment of the server."""
    environment = vllm_environment(accelerator=accelerator, enforce_eager=not accelerator)
    # The engine of a server has a process of its own.
    del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]
    return environment | {TOKEN_VARIABLE: token, "VLLM_ENGINE_READY_TIMEOUT_S": str(READY_TIMEOUT_S)}


def has_chat_template(model: Path) -> bool:
    """Return whether the tokenizer of a checkpoint has a chat template."""
    if any((model / name).is_file() for name in _TEMPLATE_FILES):
        return True
    try:
        config = orjson.loads((model / "tokenizer_config.json").read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return False
    return bool(config.get("chat_template"))


def server_arguments(options: ServerOptions) -> dict[str, Any]:
    """Return the arguments of vLLM's server, by name."""
    arguments: dict[str, Any] = {
        "model": options.model,
        "served_model_name": [options.name],
        "host": options.host,
        "port": options.port,
        "tensor_parallel_size": options.tp_size,
        # As long as the model allows and the memory holds.
        "max_model_len": -1,
        "disable_uvicorn_access_log": True,
    }
    if options.accelerator:
        return arguments
    from longshore.checks.pod_memory import CPU_BLOCK_TOKENS, CPU_KV_CACHE_BYTES

    return arguments | {
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": CPU_BLOCK_TOKENS,
        "kv_cache_memory_bytes": CPU_KV_CACHE_BYTES,
    }


def main(options: ServerOptions) -> int:
    """Serve until SIGTERM; return an exit status of the contract."""
    import uvloop
    from vllm.entrypoints.launchers.api_server.entry import run_server
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from longshore_runtime.backends.vllm_processes import adapt_processes, start_fork_server
    from longshore_runtime.backends.vllm_start import import_model_class

    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    for name, value in server_arguments(options).items():
        assert hasattr(arguments, name), f"vLLM has no argument {name}"
        setattr(arguments, name, value)
    validate_parsed_serve_args(arguments)
    try:
        modules = import_model_class(Path(options.model))
        if not options.accelerator:
            adapt_processes(modules)
            start_fork_server()
        uvloop.run(run_server(arguments))
    except (ValueError, TypeError, RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        Path(options.reason_file).write_text(_sentence(error))
        raise
    return ExitCode.SUCCEEDED


def _sentence(error: Exception) -> str:
    """Return the first sentence of a message of vLLM, which continues with lists of known models."""
    text = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
    lines = text.removeprefix("Value error, ").strip().splitlines() or [type(error).__name__]
    return lines[0].split(". ")[0][:_MAX_SENTENCE_LENGTH]


if __name__ == "__main__":
    configure_logging()
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    raise SystemExit(main(ServerOptions(**orjson.loads(sys.argv[1]))))
