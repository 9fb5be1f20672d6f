"""Decide how many decoder layers of a streamed model stay on the device, and which sequences run together.

RollPacker, section 4.3: the judge shares a GPU with the actor, most of its layers lie in host memory, and how many
follows the sequence length. Here is the arithmetic; nothing in this module touches a device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

RING_BUFFERS: Final = 2
"""Device buffers that streamed layers take turns in: one computes while the other is being filled."""
MARGIN_BYTES: Final = 256 << 20
"""Bytes for the workspace of matrix libraries, and for what an allocator loses to rounding."""
SCORED_TOKENS: Final = 256
"""Number of tokens whose logits exist at one time when log-probabilities are computed."""

_FP32_BYTES: Final = 4


class DoesNotFit(ValueError):
    """Raised when sequences need more memory than there is; the message is one sentence."""


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a decoder-only model with grouped-query attention and a gated MLP."""

    num_layers: int
    layer_bytes: int
    """Bytes of the weights of one decoder layer."""
    base_bytes: int
    """Bytes of the weights outside the decoder layers (embeddings, last norm, head), which stay on the device."""
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    element_bytes: int
    """Bytes of one weight or activation."""


def resident_layers(
    seq_tokens: int,
    batch: int,
    shape: DecoderShape,
    reserved_bytes: int,
    *,
    ring_buffers: int = RING_BUFFERS,
    margin_bytes: int = MARGIN_BYTES,
) -> int:
    """Return how many decoder layers stay on the device while `batch` sequences of `seq_tokens` run.

    `seq_tokens` counts prompt and reply.

    What activations, KV cache and the weights outside the layers leave of `reserved_bytes` holds layers. If all
    fit, all stay; otherwise the ring takes its buffers first.

    Raises:
        DoesNotFit: not even the ring fits.
    """
    needed = shape.base_bytes + working_bytes(seq_tokens, batch, shape) + margin_bytes
    room = (reserved_bytes - needed) // shape.layer_bytes
    if room >= shape.num_layers:
        return shape.num_layers
    if room < ring_buffers:
        least = needed + ring_buffers * shape.layer_bytes
        raise DoesNotFit(
            f"{batch} x {seq_tokens} tokens need {_mib(least)} of GPU memory in addition to the streamed layers, "
            f"and {_mib(reserved_bytes)} are reserved"
        )
    return room - ring_buffers


def working_bytes(seq_tokens: int, batch: int, shape: DecoderShape) -> int:
    """Return the most bytes that KV cache, activations and logits of `batch` x `seq_tokens` tokens take at one time."""
    tokens = batch * seq_tokens
    kv_width = shape.num_kv_heads * shape.head_dim
    kv_cache = tokens * shape.num_layers * 2 * kv_width * shape.element_bytes
    logits = max(batch, SCORED_TOKENS) * shape.vocab_size * (shape.element_bytes + 2 * _FP32_BYTES)
    return kv_cache + tokens * _activation_bytes(shape) + logits


def batches(
    lengths_tokens: Sequence[int],
    max_batch: int,
    shape: DecoderShape,
    reserved_bytes: int,
    *,
    ring_buffers: int = RING_BUFFERS,
) -> list[list[int]]:
    """Return indices of `lengths_tokens` (prompt and reply) by batch, the longest first.

    A batch takes as many sequences as fit with every layer streamed. That is best wherever copies are the
    bottleneck: with B bytes for layers and sequences, w per sequence, L per layer and N layers, a pass over b
    sequences copies N - (B - b w) / L layers, which is (N - B / L) / b + w / L for each: the more sequences, the
    less.

    Raises:
        DoesNotFit: a sequence does not fit alone.
    """
    room = reserved_bytes - shape.base_bytes - MARGIN_BYTES - ring_buffers * shape.layer_bytes
    waiting = sorted(range(len(lengths_tokens)), key=lambda index: -lengths_tokens[index])
    result: list[list[int]] = []
    while waiting:
        longest = lengths_tokens[waiting[0]]
        resident_layers(longest, 1, shape, reserved_bytes, ring_buffers=ring_buffers)
        size = 1
        while size < min(max_batch, len(waiting)) and working_bytes(longest, size + 1, shape) <= room:
            size += 1
        result.append(waiting[:size])
        waiting = waiting[size:]
    return result


def residency_order(num_layers: int) -> list[int]:
    """Return the order in which layers become resident: any prefix lies evenly among the layers.

    A streamed layer is copied while the layers before it compute, so resident layers serve best in between. Sorting
    by reversed binary digits also makes every choice contain the smaller ones: a change moves no layer for nothing.
    """
    digits = max(1, (num_layers - 1).bit_length())
    return sorted(range(num_layers), key=lambda layer: int(f"{layer:0{digits}b}"[::-1], 2))


def _activation_bytes(shape: DecoderShape) -> int:
    """Return the most bytes per token that are alive inside one decoder layer, whose steps follow one another."""
    hidden, query = shape.hidden_size, shape.num_heads * shape.head_dim
    kv = shape.num_kv_heads * shape.head_dim
    around = 2 * hidden * shape.element_bytes  # The residual, and the normalised input.
    norm = 3 * hidden * _FP32_BYTES + hidden * shape.element_bytes
    mlp = 3 * shape.intermediate_size * shape.element_bytes
    rotation = (5 * query + 4 * kv) * shape.element_bytes
    head_norm = 3 * query * _FP32_BYTES + (2 * query + 2 * kv) * shape.element_bytes
    return around + max(norm, mlp, rotation, head_norm)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.0f} MiB"
