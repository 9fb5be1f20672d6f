"""Causal attention for Megatron's layers, on any device, with context parallelism.

Megatron's own modules either build the whole matrix of scores and refuse context parallelism, or need Transformer
Engine. Here torch's fused attention computes, and a rank that holds a part of the queries gathers all keys and values
(as in Llama 3's training, "The Llama 3 Herd of Models", section 3.3.2).
"""

from typing import Any

import torch
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import CausalBias, CausalVariant

from longshore_runtime.backends.megatron.context import positions


class CausalAttention(MegatronModule):
    """Replacement of `DotProductAttention`. Right padding needs no mask, since no real token attends to it."""

    def __init__(self, config: Any, softmax_scale: float | None = None, pg_collection: Any = None, **_: Any) -> None:
        """Take the arguments of Megatron's core attention modules."""
        super().__init__(config=config)
        self._scale = softmax_scale
        self._group = pg_collection.cp

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **_: Any) -> Tensor:
        """Map [tokens of this rank, batch, heads, head dim] each to [the same tokens, batch, heads * head dim]."""
        size, rank = self._group.size(), self._group.rank()
        if size == 1:
            return self._attend(query, key, value)
        num_tokens = size * len(query)
        everywhere = torch.cat([positions(num_tokens, size, other) for other in range(size)]).to(query.device)
        in_order = torch.argsort(everywhere)
        key, value = (self._gather(part)[in_order] for part in (key, value))
        # Each chunk of queries ends where its keys end. A mask for both would rule out torch's faster kernels.
        front, back = query.chunk(2)
        ends = [(rank + 1) * len(front), num_tokens - rank * len(back)]
        chunks = [self._attend(part, key[:end], value[:end]) for part, end in zip((front, back), ends, strict=True)]
        return torch.cat(chunks)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Let queries see the keys up to their own; the last query has the place of the last key."""
        query, key, value = (_cast(part.permute(1, 2, 0, 3)) for part in (query, key, value))
        mask = _ends_together(query.shape[2], key.shape[2])
        output = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=self._scale, enable_gqa=True
        )
        return output.permute(2, 0, 1, 3).flatten(2)

    def _gather(self, part: Tensor) -> Tensor:
        """Gather values from all ranks; their gradient is summed over ranks."""
        gathered: Tensor = gather_from_sequence_parallel_region(
            part.contiguous(), tensor_parallel_output_grad=True, group=self._group
        )
        return gathered


def _cast(values: Tensor) -> Tensor:
    """Cast as autocast does. It would come too late: torch chooses the kernel for a `CausalBias` before."""
    device = values.device.type
    return values.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else values


def _ends_together(num_queries: int, num_keys: int) -> CausalBias | None:
    """Return the mask of queries of which the last one has the place of the last key; None: the plain causal one."""
    if num_queries == num_keys:
        return None
    # Its constructor would allocate eight bytes for every pair of a query and a key.
    mask = torch.empty(0).as_subclass(CausalBias)
    mask.variant, mask.seq_len_q, mask.seq_len_kv = CausalVariant.LOWER_RIGHT, num_queries, num_keys
    return mask
