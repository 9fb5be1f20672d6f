"""Start vLLM's engine: its model class, a first token, and the reason if it does not start."""

import gc
import importlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from vllm import EngineArgs, SamplingParams
from vllm.config import VllmConfig
from vllm.model_executor.models import ModelRegistry
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.metrics.loggers import StatLoggerBase

from longshore.api import contract
from longshore_runtime.backends.engine_spec import EngineSpec, EngineStartError
from longshore_runtime.backends.gpu_failures import is_broken_gpu
from longshore_runtime.backends.vllm_arguments import engine_arguments
from longshore_runtime.backends.vllm_loading import OnLoaded, loading_reported
from longshore_runtime.backends.vllm_outputs import OutputReader
from longshore_runtime.backends.vllm_processes import adapt_processes
from longshore_runtime.errors import EngineDied

_MAX_REASON_CHARACTERS: Final = 500


def start(model: Path, spec: EngineSpec, logger: StatLoggerBase, on_loaded: OnLoaded) -> LLMEngine:
    """Start an engine that reports its statistics to `logger`; raises EngineStartError or EngineDied, in one sentence.

    Its `step` returns `SampledTokens`.
    """
    with _start_errors():
        config = _config(model, spec)
        with loading_reported(on_loaded, config.parallel_config.local_world_size):
            engine = LLMEngine(config, Executor.get_class(config), log_stats=True, stat_loggers=[logger])
        engine.output_processor = OutputReader()
        _sample_a_token(engine)
        return engine


def follow(model: Path, spec: EngineSpec) -> None:
    """Run the part of an engine in a pod that is not its first, until a process of it ends.

    Raises:
        EngineStartError: it does not start.
        EngineDied: a process has ended.
    """
    with _start_errors():
        config = _config(model, spec)
        with loading_reported(lambda num_bytes: None, config.parallel_config.local_world_size):
            executor = MultiprocExecutor(config, monitor_workers=False)
    executor.start_worker_monitor(inline=True)
    raise EngineDied("a process of the engine has ended")


def _config(model: Path, spec: EngineSpec) -> VllmConfig:
    arguments = engine_arguments(model, spec)
    if spec.accelerator and current_platform.is_cpu():
        raise EngineStartError(
            "image: workers.gpusPerPod gives engines GPUs, but the vLLM of this image is built for the CPU"
        )
    if spec.accelerator and current_platform.is_unspecified():
        raise EngineDied("vLLM finds none of the GPUs that were assigned to the engine: their driver does not answer")
    modules = import_model_class(model)
    if not spec.accelerator:
        adapt_processes(modules)
    if spec.part.num_pods > 1:
        os.environ["VLLM_HOST_IP"] = os.environ[contract.ENV_POD_IP]  # vLLM would look for a route to the internet.
    config = EngineArgs(**arguments).create_engine_config(headless=spec.part.rank > 0)
    gc.freeze()  # Garbage collections, of which vLLM makes several now, leave out what has been imported.
    return config


@contextmanager
def _start_errors() -> Iterator[None]:
    """Raise EngineStartError or EngineDied for whatever vLLM raises."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, OSError, AssertionError, NotImplementedError, ImportError) as error:
        if is_broken_gpu(str(error)):
            raise EngineDied(f"a GPU of the engine failed: {reason(error)}") from error
        raise EngineStartError(f"rollout.engine: vLLM does not start with these options: {reason(error)}") from error


def import_model_class(model: Path) -> list[str]:
    """Make vLLM inspect the model's class in this process, which needs it anyway; return the modules that define it.

    vLLM would start another process for that, which imports vLLM once more: seconds of every engine's start, as no pod
    has the cache of an earlier one.
    """
    modules = []
    for architecture in _architectures(model):
        registered = ModelRegistry.models.get(architecture)
        module_name, class_name = (getattr(registered, name, None) for name in ("module_name", "class_name"))
        if module_name is not None and class_name is not None:
            ModelRegistry.register_model(architecture, getattr(importlib.import_module(module_name), class_name))
            modules.append(module_name)
    return modules


def _architectures(model: Path) -> list[str]:
    try:
        config = json.loads((model / "config.json").read_text())
    except (OSError, ValueError):
        return []  # vLLM reads it next, and says what is wrong.
    return config.get("architectures") or []


def _sample_a_token(engine: LLMEngine) -> None:
    """Sample a token, so that kernels that do not support the model fail now and not in the first round."""
    sampling = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False)
    engine.add_request("trial", {"prompt_token_ids": [0]}, sampling)
    while engine.has_unfinished_requests():
        engine.step()
    settle(engine)
    engine.reset_prefix_cache()


def has_work(engine: LLMEngine) -> bool:
    """Return whether there are requests, or a step under way."""
    core = engine.engine_core.engine_core  # The engine is in this process.
    return core.scheduler.has_requests() or bool(core.batch_queue)


def settle(engine: LLMEngine) -> None:
    """Wait for a step that is under way although no request is left.

    On GPUs, vLLM begins a step before it has the tokens of the one before (`async_scheduling`), and so one too many.
    """
    while engine.engine_core.engine_core.batch_queue:
        engine.step()


def reason(error: Exception) -> str:
    """Return the first line of an error; for pydantic, without the number of errors and the class name."""
    if isinstance(error, ValidationError):
        reasons = [str(one["msg"]).removeprefix("Value error, ") for one in error.errors(include_url=False)]
        text = "; ".join(reasons)
    else:
        text = str(error).strip()
    return (text.splitlines() or [type(error).__name__])[0][:_MAX_REASON_CHARACTERS].rstrip(". ")
