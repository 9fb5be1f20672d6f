"""Attention of sequences that lie one behind the other in a row, and the choice of torch's kernels."""

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

PACKED: Final = "longshore_packed"
"""Name under which transformers finds `attend_to_own_sequence`."""
_LARGEST_HEAD: Final = 256
_NOT_COMPUTED: Final = ("softcap", "s_aux", "position_bias")
"""Parts of attention in some models, as transformers names them, that no kernel used here computes."""


def allow_new_shapes() -> None:
    """Turn off cuDNN's attention in this process, which torch prefers on Hopper and Blackwell.

    cuDNN makes a plan for every shape that it has not seen, which takes about a second, forward and backward together.
    Micro-batches rarely have the same shape twice, and a judge's replies have another one with every token.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def attend_to_own_sequence(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    cu_seq_lens_q: Tensor,
    max_length_q: int,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention within each of the sequences of a row, as an attention function of transformers.

    Args:
        module: the layer, which transformers passes.
        query: [1, heads, tokens, head size]; key and value may have fewer heads.
        key: see `query`.
        value: see `query`.
        attention_mask: none, because a mask over the row would take the square of its length.
        cu_seq_lens_q: int32 [sequences + 1], where each sequence begins, and the end of the last one.
        max_length_q: length of the longest sequence.
        scaling: factor of the scores; None: one by the root of the head size.
        sliding_window: number of tokens, itself included, that a token sees; None: all before it.
        others: what models hand to any attention function.

    Raises:
        ValueError: the model has more in its attention than scores and a window.
    """
    if needed := [name for name in _NOT_COMPUTED if others.get(name) is not None]:
        raise ValueError(f"packed attention does not compute {needed[0]}")
    if value.device.type == "cuda" and value.dtype in (torch.bfloat16, torch.float16) and _fits_kernel(query, value):
        return _attend_at_once(query, key, value, cu_seq_lens_q, max_length_q, scaling, sliding_window), None
    return _attend_one_by_one(query, key, value, cu_seq_lens_q, scaling, sliding_window), None


def _attend_at_once(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, scaling: float | None, window: int | None
) -> Tensor:
    """Compute all sequences in one kernel."""
    q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
    found = varlen_attn(
        q,
        k,
        v,
        ends,
        ends,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=q.shape[1] != k.shape[1],
    )
    assert isinstance(found, Tensor)
    return found.unsqueeze(0)


@torch.compiler.disable
def _attend_one_by_one(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """Compute one sequence after the other; compiled layers leave it out, or each set of lengths would be compiled."""
    lengths = torch.diff(ends).tolist()
    sequences = zip(*(torch.split(part, lengths, dim=2) for part in (query, key, value)), strict=True)
    return torch.cat([_attend(q, k, v, scaling, window) for q, k, v in sequences], dim=2).transpose(1, 2)


def _fits_kernel(query: Tensor, value: Tensor) -> bool:
    return query.shape[-1] == value.shape[-1] <= _LARGEST_HEAD


def _attend(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None) -> Tensor:
    length = query.shape[2]
    seen = None
    if window is not None and window < length:
        everything = torch.ones(length, length, dtype=torch.bool, device=query.device)
        seen = everything.tril().triu(1 - window)
    return scaled_dot_product_attention(
        query, key, value, seen, is_causal=seen is None, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )


AttentionInterface.register(PACKED, attend_to_own_sequence)
