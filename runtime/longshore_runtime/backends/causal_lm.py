"""A Hugging Face causal language model as training sees it: log-probabilities of response tokens."""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from longshore.checks.memory import logit_chunk_tokens
from longshore_runtime.backends.file_names import FileNames
from longshore_runtime.backends.hf_mapping.files import TensorFiles
from longshore_runtime.backends.losses import token_log_probs
from longshore_runtime.backends.pretrained import load_pretrained, require_clear_head
from longshore_runtime.backends.trainer_protocol import Sample

_DROPS: Final = re.compile("dropout|layerdrop|pdrop")
"""Names of attributes and settings with the share of values, or of layers, that a module leaves out."""


@dataclass(frozen=True)
class FlatResponseTokens:
    """Flat values, [response tokens of a micro-batch], one sample after the other."""

    log_probs: Tensor
    entropies: Tensor


class CausalLM(torch.nn.Module):
    """A causal language model with fp32 weights; on CUDA, layers compute in bf16 (autocast)."""

    caches_casts = True
    """Whether a weight that is used twice in a pass is cast to bf16 once."""

    def __init__(self, directory: Path, device: torch.device) -> None:
        """Load a checkpoint; raises OSError or ValueError for an unusable one.

        A model is unusable, for example, if its logits are more than a linear head over hidden states.
        """
        super().__init__()
        model = load_pretrained(directory, torch.float32)
        require_clear_head(model)
        self.file_names = FileNames(model, TensorFiles(directory))
        self.module: Any = model.to(device)
        self._chunk_tokens = logit_chunk_tokens(model.config.get_text_config().vocab_size)
        self.device = device
        _turn_dropout_off(self.module)
        self._require_plain_head()

    def response_tokens(self, samples: Sequence[Sample], temperature: float) -> FlatResponseTokens:
        """Compute log-probabilities (at the sampling temperature) and entropies of the samples' response tokens.

        Without samples, it makes a pass over one token without results, for ranks that compute together.
        """
        lengths = [sample.num_tokens for sample in samples]
        tokens = torch.zeros(max(1, len(samples)), max(lengths, default=1), dtype=torch.long)
        predicts = torch.zeros(tokens.shape, dtype=torch.bool)
        for row, (sample, length) in enumerate(zip(samples, lengths, strict=True)):
            tokens[row, :length] = torch.from_numpy(np.concatenate((sample.prompt_tokens, sample.trajectory.tokens)))
            predicts[row, len(sample.prompt_tokens) - 1 : length - 1] = True
        log_probs, entropies = self(tokens.to(self.device), predicts.to(self.device), temperature)
        return FlatResponseTokens(log_probs, entropies)

    def forward(self, tokens: Tensor, predicts: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Compute log-probabilities and entropies of the tokens after positions where `predicts` is true.

        Tokens and `predicts` are [samples, longest length].
        """
        is_cuda = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=is_cuda, cache_enabled=self.caches_casts):
            # Right padding needs no mask: causal attention never looks at it from a real token.
            hidden = self._hidden(tokens)
            targets = tokens.roll(-1, dims=1)[predicts]
            return token_log_probs(hidden[predicts], self._head, targets, temperature, self._chunk_tokens)

    @property
    def _head(self) -> torch.nn.Module:
        head: torch.nn.Module = self.module.get_output_embeddings()
        return head

    def _hidden(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.module.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        return hidden

    @torch.no_grad()
    def _require_plain_head(self) -> None:
        """Raise ValueError unless the head alone, which training uses, gives the logits of the model's own forward."""
        tokens = torch.arange(4, device=self.device).unsqueeze(0)
        if self.module.base_model is self.module:
            raise ValueError("transformers has no model of it without the output layer; choose another architecture")
        expected = self.module(input_ids=tokens, use_cache=False).logits
        if not torch.allclose(self._head(self._hidden(tokens)), expected, rtol=1e-3, atol=1e-3):
            raise ValueError("its logits are not a linear map of the last hidden state; choose another architecture")


def _turn_dropout_off(module: Any) -> None:
    """Turn dropout off, so that the ratio to the sampling distribution is 1 before the first step.

    `eval` would also turn off gradient checkpointing.
    """
    module.train()
    settings = copy.deepcopy(module.config)
    _set_shares_to_zero(settings)
    for layer in module.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
        # Some layers read the share at each pass. The model itself keeps its settings, which are saved with it.
        if layer is not module and getattr(layer, "config", None) is module.config:
            layer.config = settings
        _set_shares_to_zero(layer)


def _set_shares_to_zero(keeper: Any) -> None:
    shares = [name for name, value in vars(keeper).items() if isinstance(value, float) and _DROPS.search(name)]
    for name in shares:
        setattr(keeper, name, 0.0)
