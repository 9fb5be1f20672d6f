"""What determines an engine."""

from dataclasses import dataclass

from longshore.api.rollout import Engine as EngineOptions


class EngineStartError(Exception):
    """The engine could not start: one sentence that names the field."""


@dataclass(frozen=True)
class EngineSpec:
    """Everything that determines an engine, except where its model is mounted."""

    options: EngineOptions
    max_context_tokens: int
    """Longest prompt and response together."""
    seed: int = 0
    accelerator: bool = False
    """Whether GPUs are assigned to the engine; otherwise it runs on the CPU."""
