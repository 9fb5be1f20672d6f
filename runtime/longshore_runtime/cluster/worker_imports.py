"""Modules that the actors of a pod import, imported once for all of them; see `fork_server`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from longshore.api.names import Component
from longshore.api.rollout import EngineBackend
from longshore.api.spec import Placement, RLJobSpec
from longshore.api.training import TrainerBackend
from longshore_runtime.backends.vllm_environment import has_compiler, vllm_environment

_TRAINERS: Final[Mapping[TrainerBackend, tuple[str, ...]]] = {
    TrainerBackend.FAKE: (),
    TrainerBackend.TORCH: ("longshore_runtime.backends.torch_trainer",),
    TrainerBackend.MEGATRON: ("longshore_runtime.backends.megatron.trainer",),
}


@dataclass(frozen=True)
class WorkerImports:
    """Modules, and the variables to set before they are imported."""

    modules: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def worker_imports(spec: RLJobSpec, component: Component) -> WorkerImports:
    """Return the modules that the actors in a pod of this component import."""
    trains = component is Component.TRAINER or spec.placement is Placement.COLOCATED
    trainer = _TRAINERS[spec.trainer.backend] if trains else ()
    samples = component is Component.WORKER
    engine = _engine(spec) if samples else WorkerImports()
    return WorkerImports((*engine.modules, *trainer), engine.environment)


def _engine(spec: RLJobSpec) -> WorkerImports:
    options, has_accelerator = spec.rollout.engine, spec.workers.has_accelerator
    if options.backend is EngineBackend.FAKE:
        return WorkerImports()
    # As `create_engine` decides, but torch reads it when it is imported, which is before. Trainers inherit it.
    enforce_eager = (options.enforce_eager and not spec.trainer.torch_compile) or not has_compiler()
    environment = vllm_environment(accelerator=has_accelerator, enforce_eager=enforce_eager)
    # vLLM looks for GPUs when it is imported, and a process that has used a GPU cannot be forked.
    return WorkerImports(() if has_accelerator else ("longshore_runtime.backends.vllm_cpu",), environment)
