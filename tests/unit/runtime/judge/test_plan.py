"""How many layers stay on the device follows the sequence length and the reserved memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_runtime.backends.streamed_lm.plan import (
    DecoderShape,
    batches,
    residency_order,
    resident_layers,
    working_bytes,
)

GIB = 1 << 30

QWEN_7B = DecoderShape(
    num_layers=28,
    layer_bytes=466_115_584,
    base_bytes=2 * 152_064 * 3_584 * 2 + 3_584 * 2,
    hidden_size=3_584,
    intermediate_size=18_944,
    num_heads=28,
    num_kv_heads=4,
    head_dim=128,
    vocab_size=152_064,
    element_bytes=2,
)
"""Qwen2.5-7B in bf16: 28 layers of 466 MB, embeddings and head 2.2 GB."""

SMALL = DecoderShape(
    num_layers=10,
    layer_bytes=1_000,
    base_bytes=500,
    hidden_size=4,
    intermediate_size=8,
    num_heads=2,
    num_kv_heads=1,
    head_dim=2,
    vocab_size=10,
    element_bytes=2,
)


@pytest.mark.parametrize(
    ("seq_tokens", "batch", "reserved_gib", "layers"),
    [
        (1_024, 1, 20, 28),
        (1_024, 1, 10, 14),
        (8_192, 1, 10, 11),
        (16_384, 1, 10, 8),
        (32_768, 1, 10, 1),
        (1_024, 8, 10, 11),
        (1_024, 32, 10, 1),
        (1_024, 1, 8, 9),
        (16_384, 1, 8, 3),
        (32_768, 1, 12, 6),
        (32_768, 1, 16, 15),
        (32_768, 1, 24, 28),
    ],
)
def test_table_of_a_7b_judge(seq_tokens: int, batch: int, reserved_gib: int, layers: int) -> None:
    assert resident_layers(seq_tokens, batch, QWEN_7B, reserved_gib * GIB) == layers


def test_worked_example() -> None:
    """All by hand: 4 x 5 tokens of the small model.

    KV cache: 20 tokens x 10 layers x 2 x 2 wide x 2 bytes = 1,600.
    Activations: residual and input 2 x 4 x 2 = 16; the norm in fp32 (3 x 4 x 4 + 4 x 2 = 56), the rotation of queries
    and keys ((5 x 4 + 4 x 2) x 2 = 56) or the fp32 norm of heads (3 x 4 x 4 + (2 x 4 + 2 x 2) x 2 = 72), the MLP
    (3 x 8 x 2 = 48): 16 + 72 = 88 a token, 1,760 together. Logits: 256 x 10 x (2 + 8) = 25,600.
    """
    assert working_bytes(5, 4, SMALL) == 1_600 + 1_760 + 25_600
    needed = 500 + 28_960
    assert resident_layers(5, 4, SMALL, needed + 10_000, margin_bytes=0) == 10
    assert resident_layers(5, 4, SMALL, needed + 9_999, margin_bytes=0) == 7
    assert resident_layers(5, 4, SMALL, needed + 9_999, margin_bytes=0, ring_buffers=1) == 8
    assert resident_layers(5, 4, SMALL, needed + 2_999, margin_bytes=0) == 0
    assert resident_layers(5, 4, SMALL, needed + 3_099, margin_bytes=100) == 0


def test_a_batch_that_does_not_fit_is_refused_with_what_it_needs() -> None:
    with pytest.raises(ValueError, match=r"^1 x 32768 tokens need 9,387 MiB of GPU memory .* 8,192 MiB are reserved$"):
        resident_layers(32_768, 1, QWEN_7B, 8 * GIB)


sizes = st.integers(1, 40_000)
memories = st.integers(0, 40 * GIB)


@given(sizes, st.integers(1, 64), memories)
def test_what_is_planned_fits_into_what_is_reserved(seq_tokens: int, batch: int, reserved_bytes: int) -> None:
    try:
        layers = resident_layers(seq_tokens, batch, QWEN_7B, reserved_bytes)
    except ValueError:
        layers, ring = 0, 2
        fits = False
    else:
        ring, fits = (0 if layers == QWEN_7B.num_layers else 2), True
    needed = QWEN_7B.base_bytes + working_bytes(seq_tokens, batch, QWEN_7B) + (256 << 20)
    assert (needed + (layers + ring) * QWEN_7B.layer_bytes <= reserved_bytes) is fits
    if fits and layers < QWEN_7B.num_layers:
        assert needed + (layers + ring + 1) * QWEN_7B.layer_bytes > reserved_bytes, "no room is left unused"


@given(sizes, sizes, st.integers(1, 8), memories, memories)
def test_longer_sequences_never_keep_more_layers_and_more_memory_never_fewer(
    tokens: int, more_tokens: int, batch: int, memory: int, more_memory: int
) -> None:
    assert _layers(max(tokens, more_tokens), batch, memory) <= _layers(min(tokens, more_tokens), batch, memory)
    assert _layers(tokens, batch, min(memory, more_memory)) <= _layers(tokens, batch, max(memory, more_memory))


@given(st.lists(st.integers(1, 9_000), max_size=40), st.integers(1, 16))
def test_batches_hold_every_sequence_once_the_longest_first_and_fit(lengths: list[int], max_batch: int) -> None:
    planned = batches(lengths, max_batch, QWEN_7B, 8 * GIB)
    assert sorted(index for batch in planned for index in batch) == list(range(len(lengths)))
    in_order = [lengths[index] for batch in planned for index in batch]
    assert in_order == sorted(lengths, reverse=True)
    for batch in planned:
        assert 1 <= len(batch) <= max_batch
        assert resident_layers(lengths[batch[0]], len(batch), QWEN_7B, 8 * GIB) >= 0


def test_a_batch_is_as_large_as_memory_allows() -> None:
    sizes_of_batches = [len(batch) for batch in batches([4_096] * 20, 16, QWEN_7B, 8 * GIB)]
    assert sizes_of_batches == [6, 6, 6, 2]
    with pytest.raises(ValueError, match=r"^7 x 4096 tokens need"):
        resident_layers(4_096, 7, QWEN_7B, 8 * GIB)


def test_a_sequence_that_does_not_fit_alone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^1 x 32768 tokens need"):
        batches([100, 32_768], 16, QWEN_7B, 8 * GIB)


@given(st.integers(1, 200), st.data())
def test_resident_layers_lie_evenly_among_the_streamed_ones(num_layers: int, data: st.DataObject) -> None:
    order = residency_order(num_layers)
    assert sorted(order) == list(range(num_layers))
    num_resident = data.draw(st.integers(1, num_layers))
    resident = sorted(order[:num_resident])
    gaps = [after - before for before, after in zip(resident, [*resident[1:], resident[0] + num_layers], strict=True)]
    assert max(gaps) <= 4 * -(-num_layers // num_resident)


def _layers(seq_tokens: int, batch: int, reserved_bytes: int) -> int:
    """As planned; -1 where nothing fits."""
    try:
        return resident_layers(seq_tokens, batch, QWEN_7B, reserved_bytes)
    except ValueError:
        return -1
