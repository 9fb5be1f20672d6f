"""A KV cache that is allocated once, as large as the plan has counted it."""

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class _Layer(DynamicLayer):
    """Keys and values of one decoder layer: (batch, KV heads, tokens, head width)."""

    def __init__(self, capacity_tokens: int) -> None:
        super().__init__()
        self._capacity_tokens = capacity_tokens
        self._used_tokens = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = (self._room(states) for states in (key_states, value_states))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        begin, end = self._used_tokens, self._used_tokens + key_states.shape[-2]
        self.keys[..., begin:end, :] = key_states
        self.values[..., begin:end, :] = value_states
        self._used_tokens = end
        return self.keys[..., :end, :], self.values[..., :end, :]

    def get_seq_length(self) -> int:
        return self._used_tokens

    def _room(self, states: Tensor) -> Tensor:
        return states.new_empty((*states.shape[:-2], self._capacity_tokens, states.shape[-1]))


def kv_cache(num_layers: int, capacity_tokens: int) -> Cache:
    """An empty cache for sequences of up to `capacity_tokens`."""
    return Cache(layers=[_Layer(capacity_tokens) for _ in range(num_layers)])
