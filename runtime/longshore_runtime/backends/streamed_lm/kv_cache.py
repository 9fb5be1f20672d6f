"""A KV cache that is allocated once, as large as the plan has counted it."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from longshore_runtime.backends.streamed_lm.plan import DecoderShape


class _Layer(DynamicLayer):
    """Keys and values of one decoder layer: (batch, KV heads, tokens, head width)."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values
        self._used_tokens = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        begin, end = self._used_tokens, self._used_tokens + key_states.shape[-2]
        self.keys[..., begin:end, :] = key_states
        self.values[..., begin:end, :] = value_states
        self._used_tokens = end
        return self.keys[..., :end, :], self.values[..., :end, :]

    def get_seq_length(self) -> int:
        return self._used_tokens


def kv_cache(shape: DecoderShape, batch: int, capacity_tokens: int, dtype: torch.dtype, device: torch.device) -> Cache:
    """Allocate an empty cache for `batch` sequences of up to `capacity_tokens`.

    All layers share one tensor, allocated before any activation: keys and values that outlive activations next to which
    they are made would cut the allocator's free memory into pieces.
    """
    sizes = (shape.num_layers, 2, batch, shape.num_kv_heads, capacity_tokens, shape.head_dim)
    room = torch.empty(sizes, dtype=dtype, device=device)
    return Cache(layers=[_Layer(keys, values) for keys, values in room])
