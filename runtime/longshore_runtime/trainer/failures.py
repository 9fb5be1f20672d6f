"""Tell the loss of a peer from any other exception of a call of a trainer rank."""

from typing import Final

from longshore_runtime.backends.gpu_failures import is_broken_gpu, is_lack_of_memory
from longshore_runtime.errors import LogProbMismatch, TrainerLost, UserError, WeightsUnavailable

_LOST_PEER: Final = (
    "onnection", "connectFullMesh", "Connect timeout", "Socket ", "imed out", "timeout caused", "peer",
    "remote process", "unreachable",
)  # fmt: skip
"""Texts by which gloo and nccl report that another rank is gone."""
_NCCL_DETAIL: Final = "Last error:"
_TAKE_MEMORY_BACK: Final = ("wake", "begin_sending", "fill")
"""Calls of a rank after an engine has left its memory; one that was killed may not have left it yet."""

_GATHER_WEIGHTS: Final = ("begin_save", "weights", "load", "discard")
"""Calls of a rank that need memory for whole weights, and none for micro-batches; engines may be awake meanwhile."""


def lost_peer(error: Exception) -> str | None:
    """Return one line about a communication error, by which the loss of a peer shows in the survivors, or None."""
    cause = getattr(error, "cause", None)
    text = str(cause).strip()
    is_communication = type(cause).__name__.startswith("Dist") or (
        isinstance(cause, RuntimeError) and any(sign in text for sign in _LOST_PEER)
    )
    return _line(text) if is_communication else None


def cause(error: Exception) -> Exception:
    """Return what to raise for an error of a call, instead of Ray's."""
    if (reason := lost_peer(error)) is not None:
        return TrainerLost(f"a trainer replica lost its peers ({reason})")
    raised = getattr(error, "cause", None)
    if isinstance(raised, UserError | LogProbMismatch | WeightsUnavailable):
        return raised
    if is_broken_gpu(str(raised)):
        return TrainerLost(f"a GPU of a trainer replica failed ({_line(str(raised))})")
    if type(raised).__name__ == "OutOfMemoryError" or is_lack_of_memory(str(raised)):
        if any(f".{call}()" in str(error) for call in _TAKE_MEMORY_BACK):
            return TrainerLost("there is not enough GPU memory for a trainer: another process of its GPU has kept it")
        if any(f".{call}()" in str(error) for call in _GATHER_WEIGHTS):
            return TrainerLost(
                "a trainer has no GPU memory to gather weights: lower rollout.engine.gpuMemoryUtilization"
            )
        return UserError("trainer.maxTokensPerMicroBatch: the trainer ran out of GPU memory; lower it")
    return error


def _line(text: str) -> str:
    """Return the first line, and what NCCL adds to it."""
    detail = text.partition(_NCCL_DETAIL)[2].strip()
    return "; ".join(part.splitlines()[0] for part in (text or "no message", detail) if part)
