"""What a reward worker finds where it runs: the layers of its sandbox, and how its GPU is shared."""

from dataclasses import dataclass
from typing import Any, Final

from longshore.api.limits import MAX_REPORTED
from longshore.api.reward import SandboxLayer
from longshore.api.runtime_status import RewardSurroundings
from longshore_runtime.sandbox.layers import LayerReport

GPU_SHARING_VARIABLE: Final = "LONGSHORE_GPU_SHARING"
"""Variable with how the processes of a worker pod share its GPUs, and why; set if a colocated judge runs."""


@dataclass(frozen=True)
class Surroundings:
    """Surroundings of one worker."""

    sandbox: LayerReport | None = None
    """Layers of the sandbox; None: the worker runs no code of models."""
    gpu_sharing: str | None = None
    """Way in which the worker shares its GPU; None: it shares no GPU."""

    def facts(self) -> dict[str, Any]:
        """Return the facts as fields of a log line."""
        facts: dict[str, Any] = {}
        if self.sandbox is not None:
            facts["sandbox"] = sorted(self.sandbox.available)
            facts["lacking"] = {str(layer): why for layer, why in self.sandbox.reasons.items() if why is not None}
        if self.gpu_sharing is not None:
            facts["gpu_sharing"] = self.gpu_sharing
        return facts


def with_worker(known: RewardSurroundings | None, found: Surroundings) -> RewardSurroundings | None:
    """Return what applies to all workers, including a new one; None: there is nothing to report."""
    sandbox, sharing = (known.sandbox, set(known.gpu_sharing)) if known is not None else (None, set[str]())
    if found.sandbox is not None:
        here = {SandboxLayer(layer) for layer in found.sandbox.available}
        sandbox = [layer for layer in SandboxLayer if layer in here and (sandbox is None or layer in sandbox)]
    if found.gpu_sharing is not None:
        sharing.add(found.gpu_sharing)
    if sandbox is None and not sharing:
        return None
    return RewardSurroundings(sandbox=sandbox, gpu_sharing=sorted(sharing)[:MAX_REPORTED])
