"""Router replay: the trainer lets tokens pass through the experts that the engine chose for them.

Rounding makes the routers of engine and trainer choose differently now and then, and what follows differs by far more
than rounding. With replay, a router chooses nothing; the weights of the experts are still its own, and get their
gradient.

Source: R3, arXiv 2510.11370.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from longshore_runtime.backends.experts import expert_modules
from longshore_runtime.backends.trainer_protocol import Sample

_NUMBER: Final = re.compile(r"\.(\d+)\.")
_OWN: Final = -1
"""Stands for an expert that the router of the trainer chooses."""


class RouterReplay:
    """Puts experts that were chosen before in the place of those that the routers of a model choose."""

    def __init__(self, model: Any) -> None:
        """Adapt the layers of a model of transformers; raises ValueError if it has no experts."""
        self._experts: Tensor | None = None
        """Experts of the tokens of the current pass, [num_tokens, num_layers, experts per token]. They stay until the
        next pass, because the backward pass may compute layers again."""
        self._modules = {int(_NUMBER.findall(name)[0]): (name, module) for name, module in expert_modules(model)}
        if not self._modules:
            raise ValueError("transformers has no experts for it whose choice could be replayed")
        for number, (name, _) in self._modules.items():
            block = model.get_submodule(name.rpartition(".")[0])
            block.forward = self._replaying(block.forward, number)
        settings = model.config.get_text_config()
        if not hasattr(settings, "num_experts_per_tok"):
            raise ValueError("its configuration does not name the experts per token as num_experts_per_tok")
        self._shape = (settings.num_hidden_layers, settings.num_experts_per_tok)
        self._num_experts = next(module.num_experts for _, module in self._modules.values())

    def begin(self, samples: Sequence[Sample], join: Callable[[Sequence[Any]], Tensor], device: torch.device) -> None:
        """Replay the experts of these samples in the next pass, whose tokens `join` puts together.

        Routers choose for tokens whose experts are not known: the last one of every sample, and padding.
        """
        if all(sample.trajectory.experts is None for sample in samples):
            self._experts = None
            return
        # Padding is 0, so that numbers begin with 1 meanwhile.
        rows = join([self._rows(sample) + 1 for sample in samples]) - 1
        self._experts = rows.flatten(0, 1).to(device)

    def end(self) -> None:
        """Let routers choose in the next pass."""
        self._experts = None

    def verify(self, compute: Callable[[Tensor], object], device: torch.device) -> None:
        """Raise ValueError unless experts get the tokens that they should; `compute` makes a pass over tokens."""
        num_layers, num_chosen = self._shape
        wanted = (torch.arange(4)[:, None] + torch.arange(num_chosen)) % self._num_experts
        seen: dict[int, Tensor] = {}
        hooks = [
            module.register_forward_pre_hook(lambda _, inputs, number=number: seen.update({number: inputs[1]}))
            for number, (_, module) in self._modules.items()
        ]
        self._experts = wanted[:, None].expand(-1, num_layers, -1).to(device)
        try:
            compute(torch.arange(4, device=device).unsqueeze(0))
        finally:
            self.end()
            for hook in hooks:
                hook.remove()
        if any(number not in seen or not torch.equal(seen[number].cpu(), wanted) for number in self._modules):
            raise ValueError("its routers choose experts in a way that cannot be replayed")

    def _rows(self, sample: Sample) -> np.ndarray[Any, np.dtype[np.int16]]:
        """Return the experts of each token of prompt and response."""
        rows = np.full((sample.num_tokens, *self._shape), _OWN, np.int16)
        trajectory = sample.trajectory
        if trajectory.experts is None or trajectory.prompt_experts is None:
            return rows
        known = np.concatenate((trajectory.prompt_experts, trajectory.experts))
        if known.shape[1:] != self._shape or known.max(initial=0) >= self._num_experts:
            raise ValueError(
                f"engines return experts of another model: {known.shape[1:]} of {known.max(initial=0) + 1} or more, "
                f"and the model has {self._shape} of {self._num_experts}"
            )
        rows[: len(known)] = known
        return rows

    def _replaying(self, forward: Callable[..., Any], number: int) -> Callable[..., Any]:
        def replay(*args: Any, **kwargs: Any) -> Any:
            if self._experts is None:
                return forward(*args, **kwargs)
            with _Choice(self._experts[:, number], self._num_experts):
                return forward(*args, **kwargs)

        return replay


class _Choice(TorchFunctionMode):
    """Replaces the result of the search for the best experts, of which transformers has one in every router."""

    def __init__(self, experts: Tensor, num_experts: int) -> None:
        super().__init__()
        self._experts = experts
        self._num_experts = num_experts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk):
            return found
        scores: Tensor = args[0]
        # Routers with groups of experts also look for the best groups.
        if found.indices.shape != self._experts.shape or scores.shape[-1] != self._num_experts:
            return found
        chosen = torch.where(self._experts == _OWN, found.indices, self._experts.to(found.indices.dtype))
        return torch.return_types.topk((scores.gather(-1, chosen), chosen))
