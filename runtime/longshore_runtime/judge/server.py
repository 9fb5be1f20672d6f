"""Main program of a judge pod: serves the model of a reward function, and publishes its address."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Never

import structlog

from longshore.api import contract
from longshore.api.contract import ExitCode
from longshore.api.reward import RewardFunction
from longshore.api.spec import RLJobSpec
from longshore_runtime.backends.judge_server import (
    READY_TIMEOUT_S,
    ServerOptions,
    has_chat_template,
    server_command,
    server_environment,
)
from longshore_runtime.errors import ASKED_TO_STOP, Interrupted, UserError
from longshore_runtime.judge import addresses
from longshore_runtime.judge.addresses import Address
from longshore_runtime.settings import Settings, host_port
from longshore_runtime.storage import job_storage

log = structlog.get_logger()

CRASHED: Final = 1
_TICK_S: Final = 0.2
_HEALTH_TIMEOUT_S: Final = 5.0
_STOP_TIMEOUT_S: Final = 10.0


class ServerEnded(Exception):
    """Raised when the server ended without a request to stop; the message is one sentence."""


def run_judge(settings: Settings) -> int:
    """Serve until the pod is asked to stop; returns the exit status of the contract."""
    stop = _Interrupter()
    try:
        _serve(settings, stop)
    except UserError as error:
        code, reason = int(ExitCode.USER_ERROR), str(error)
    except Interrupted as interruption:
        code, reason = int(ExitCode.INTERRUPTED), str(interruption)
    except ServerEnded as error:
        code, reason = CRASHED, str(error)
    log.info("the pod ends", code=code, reason=reason)
    settings.report_reason(reason)
    return code


def _serve(settings: Settings, stop: "_Interrupter") -> Never:
    """Serve until the end; raises what ended it."""
    spec = RLJobSpec.model_validate_json(settings.config.read_bytes())
    function, replica = spec.reward.judge_pod(settings.index)
    storage = job_storage(settings, spec.storage.output)
    model = _checkpoint(function, storage.resolve)
    directory = addresses.directory(storage.output_dir, function.name)
    with tempfile.TemporaryDirectory() as scratch:
        options = _options(settings, function, model, Path(scratch) / "reason")
        try:
            with _started(options) as server:
                _wait_until_ready(server, options, stop)
                addresses.publish(directory, replica, _address(options, model, settings.attempt))
                log.info("the judge serves", reward=function.name, replica=replica)
                raise ServerEnded(f"the server of the judge ended with code {_end(server, stop)}")
        except _NotServed as error:
            if addresses.was_published(directory, replica) or error.code < 0:
                raise ServerEnded(f"the server of the judge does not start: {error}") from error
            raise UserError(f"{_field(function)}: vLLM does not serve {model.name!r}: {error}") from error


class _NotServed(Exception):
    """Raised when the server ended before it was ready; the message is one sentence."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def _field(function: RewardFunction) -> str:
    return f"reward.functions[{function.name}].judge.modelPath"


def _checkpoint(function: RewardFunction, resolve: Callable[[str], Path]) -> Path:
    assert function.judge is not None and function.judge.model_path is not None, "validation asks for it"
    model = resolve(function.judge.model_path)
    if not (model / "config.json").is_file():
        raise UserError(
            f"{_field(function)}: {function.judge.model_path!r} is no Hugging Face checkpoint in the storage of the "
            "job: it has no config.json"
        )
    return model


def _options(settings: Settings, function: RewardFunction, model: Path, reason_file: Path) -> ServerOptions:
    assert function.judge is not None and function.pool is not None, "a judge pod serves a pool"
    return ServerOptions(
        model=str(model),
        name=function.judge.model_name,
        host=settings.pod_ip,
        port=contract.JUDGE_PORT,
        tp_size=max(1, function.pool.gpus_per_pod) if function.pool.has_accelerator else 1,
        accelerator=function.pool.has_accelerator,
        reason_file=str(reason_file),
    )


def _address(options: ServerOptions, model: Path, attempt: int) -> Address:
    """Return the server's address: for chats if the model knows chats, as with a colocated judge."""
    path = "/v1" if has_chat_template(model) else "/v1/completions"
    return Address(f"http://{host_port(options.host, options.port)}{path}", attempt)


@contextlib.contextmanager
def _started(options: ServerOptions) -> "Iterator[subprocess.Popen[bytes]]":
    """Yield the server's process; leaving the block ends it with all that it started."""
    token = Path(os.environ[contract.ENV_JUDGE_TOKEN]).read_text(encoding="utf-8").strip()
    environment = os.environ | server_environment(token, accelerator=options.accelerator)
    server = subprocess.Popen(server_command(options), env=environment, start_new_session=True)
    try:
        yield server
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(_STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_until_ready(server: "subprocess.Popen[bytes]", options: ServerOptions, stop: "_Interrupter") -> None:
    """Wait until the server is ready; raises _NotServed."""
    url = f"http://{host_port(options.host, options.port)}/health"
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not _is_healthy(url):
        code = server.poll()
        if code is not None:
            stop.check()
            reason_file = Path(options.reason_file)
            termination_message = reason_file.read_text().rstrip(".") if reason_file.is_file() else ""
            raise _NotServed(code, termination_message or f"its server ended with code {code}")
        if time.monotonic() > deadline_s:
            raise _NotServed(-signal.SIGKILL, f"its server is not ready after {READY_TIMEOUT_S} s")
        stop.sleep(_TICK_S)


def _end(server: "subprocess.Popen[bytes]", stop: "_Interrupter") -> int:
    """Return how the server ended, when it has."""
    while (code := server.poll()) is None:
        stop.sleep(_TICK_S)
    stop.check()
    return code


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_HEALTH_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class _Interrupter:
    """SIGTERM interrupts where the program waits, and nowhere else: a process that just starts is not forgotten."""

    def __init__(self) -> None:
        self._is_requested = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def check(self) -> None:
        """Check whether the pod is asked to stop; raises Interrupted."""
        if self._is_requested:
            raise Interrupted(ASKED_TO_STOP)

    def sleep(self, seconds: float) -> None:
        """Sleep; raises Interrupted before it does."""
        self.check()
        time.sleep(seconds)

    def _on_signal(self, *_: object) -> None:
        self._is_requested = True
