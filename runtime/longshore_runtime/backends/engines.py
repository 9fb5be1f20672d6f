"""Create the engine that a job asks for."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from longshore.api.rollout import EngineBackend
from longshore_runtime.backends.engine_protocol import Engine
from longshore_runtime.backends.engine_spec import EngineSpec, EngineStartError
from longshore_runtime.backends.fake_engine import FakeEngine, FakeEngineOptions, expert_sizes
from longshore_runtime.backends.vllm_environment import has_compiler, vllm_environment
from longshore_runtime.process.large_imports import without_collections

log = structlog.get_logger()


def create_engine(spec: EngineSpec, model: Path, on_loaded: Callable[[int], None] = lambda num_bytes: None) -> Engine:
    """Start an engine on a Hugging Face checkpoint; raises EngineStartError.

    `on_loaded` is called with the bytes of the checkpoint that have been read so far.
    """
    if spec.options.backend is EngineBackend.FAKE:
        options = _fake_options(spec, model)
        if (tp_size := spec.options.tensor_parallel_size) > options.max_tp_size:
            raise EngineStartError(f"rollout.engine.tensorParallelSize: the model does not split into {tp_size} parts")
        return FakeEngine(options)
    spec = _prepared(spec, model)
    with without_collections():
        from longshore_runtime.backends.vllm_engine import VllmEngine

    return VllmEngine(model, spec, on_loaded=on_loaded)


def follow_engine(spec: EngineSpec, model: Path) -> None:
    """Run the part of an engine in a pod that is not its first; raises EngineStartError, or EngineDied when it ends."""
    if spec.options.backend is EngineBackend.FAKE:
        _fake_options(spec, model)
        threading.Event().wait()  # All that it does happens in the first pod.
    spec = _prepared(spec, model)
    with without_collections():
        from longshore_runtime.backends.vllm_start import follow

    follow(model, spec)


def _prepared(spec: EngineSpec, model: Path) -> EngineSpec:
    """Set what vLLM reads when it is imported; return the spec for this machine."""
    if not (model / "config.json").exists():
        raise EngineStartError(f"model: {model.name!r} is no Hugging Face checkpoint: it has no config.json")
    if not has_compiler() and (eager := spec.without_compiler()) is not spec:
        log.info("the engine runs without compilation: the image has no C++ compiler")
        spec = eager
    environment = vllm_environment(accelerator=spec.accelerator, enforce_eager=spec.options.enforce_eager)
    os.environ.update(environment)
    return spec


def _fake_options(spec: EngineSpec, model: Path) -> FakeEngineOptions:
    try:
        values = {"max_num_seqs": spec.options.max_num_seqs, **spec.options.extra_args}
        if spec.returns_experts:
            values |= expert_sizes(model)
        return FakeEngineOptions.for_model(model, **values)
    except ValueError as error:
        raise EngineStartError(str(error)) from error
