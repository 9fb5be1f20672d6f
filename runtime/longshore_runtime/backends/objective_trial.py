"""Try an objective of the user's own with a few tokens, before anything expensive starts."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any, Final

import torch

from longshore.api.objectives.custom import Custom
from longshore.api.objectives.objective import LossTokens
from longshore_runtime.rewards.failure_text import error_with_place, shown

FIELD: Final = "algorithm.objective.importPath"
_LIMIT_S: Final = 120.0
_LENGTHS: Final = (3, 1, 5)
"""Tokens of the responses that it is tried with."""


def objective_mistake(objective: Custom, limit_s: float = _LIMIT_S) -> str | None:
    """Return what keeps the function from being an objective, as one sentence, or None.

    Call it in the main thread, which alone can be interrupted: a function that hangs is a mistake after `limit_s`.
    """
    try:
        with _at_most(limit_s):
            return _mistake(objective)
    except _TooSlowError:
        return f"{FIELD}: {objective.import_path} takes more than {limit_s:g} s for a few tokens; make it faster"


def _mistake(objective: Custom) -> str | None:
    path = f"{FIELD}: {objective.import_path}"
    try:
        function = objective.function()
    except Exception as error:  # noqa: BLE001 - code of users may raise anything
        return f"{path} cannot be imported ({error_with_place(error)}); correct it, or submit its file with --with"
    tokens = _tokens(_LENGTHS)
    try:
        found: Any = function(tokens, **objective.settings)
    except Exception as error:  # noqa: BLE001
        return f"{path} raises {error_with_place(error)}; correct it, or algorithm.objective.settings"
    loss, is_clipped = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(loss, torch.Tensor):
        return f"{path} returns {shown(loss)}; return a tensor with the loss of each token"
    if loss.shape != tokens.log_probs.shape:
        wrong = f"a tensor of shape {list(loss.shape)} for {list(tokens.log_probs.shape)} tokens"
        return f"{path} returns {wrong}; return the loss of each token, neither added up nor averaged"
    if not loss.requires_grad:
        return f"{path} returns losses without a gradient; compute them from tokens.log_probs"
    (gradient,) = torch.autograd.grad(loss.sum(), tokens.log_probs, allow_unused=True)
    if gradient is None or not (loss.isfinite().all() and gradient.isfinite().all()):
        return f"{path} returns losses or gradients that are no finite numbers; bound what it computes"
    if is_clipped is not None and not _is_bool_for_each(is_clipped, loss):
        return f"{path} returns something else than a bool for each token as its second value; correct or drop it"
    alone = objective.token_losses(_tokens(_LENGTHS[:1])).loss
    if not torch.allclose(alone, loss[: _LENGTHS[0]]):
        return (
            f"{path} gives a response other losses with other responses beside it; a call holds any part of the batch, "
            "so compute the losses of each response from its own tokens"
        )
    return None


class _TooSlowError(BaseException):
    """Raised in the user's function, which cannot take it for an error of its own."""


@contextlib.contextmanager
def _at_most(limit_s: float) -> Iterator[None]:
    def interrupt(*_: Any) -> None:
        raise _TooSlowError

    before = signal.signal(signal.SIGALRM, interrupt)
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left_s)
        signal.signal(signal.SIGALRM, before)


def _is_bool_for_each(values: Any, loss: torch.Tensor) -> bool:
    return isinstance(values, torch.Tensor) and values.shape == loss.shape and values.dtype is torch.bool


def _tokens(lengths: tuple[int, ...]) -> LossTokens:
    """Return tokens whose ratios are around 1; those of a response do not depend on the number of responses."""
    number = sum(lengths)
    place = torch.arange(number, dtype=torch.float32)
    rollout = -0.5 - (place % 4) / 2
    log_probs = (rollout + 0.3 * torch.sin(2 * place)).requires_grad_()
    signs = torch.tensor([1.0, -1.0, 0.5])[: len(lengths)]
    advantages = signs.repeat_interleave(torch.tensor(lengths))
    return LossTokens(log_probs, rollout + 0.01, rollout, advantages, lengths)
