"""A value model: a language model whose output layer is replaced by one value."""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from longshore_runtime.backends.causal_lm import CausalLM
from longshore_runtime.backends.hf_mapping.files import TensorFiles
from longshore_runtime.backends.trainer_protocol import Sample

HEAD: Final = "score"
"""Name of the head in transformers' models for sequence classification, as which checkpoints of a critic open there."""
HEAD_WEIGHT: Final = f"{HEAD}.weight"


class ValueModel(CausalLM):
    """A language model with a linear head, which begins with zeros, in place of its output layer."""

    def _move_to_device(self, files: TensorFiles) -> None:
        replaced: Any = self.module.get_output_embeddings()
        weight = replaced.weight
        head = torch.nn.Linear(weight.shape[1], 1, bias=False, device=weight.device, dtype=weight.dtype)
        torch.nn.init.zeros_(head.weight)
        self.module.set_output_embeddings(torch.nn.Identity())
        self.module.add_module(HEAD, head)
        super()._move_to_device(files)

    def response_values(self, samples: Sequence[Sample]) -> Tensor:
        """Compute the values of the states before the samples' response tokens, [response tokens], flat."""

        def compute(hidden: Tensor, targets: Tensor) -> Tensor:
            values: Tensor = self.module.get_submodule(HEAD)(hidden.float())
            return values.squeeze(-1).clone()  # FSDP warns of views.

        return self._at_response_tokens(samples, compute)
