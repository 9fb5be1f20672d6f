"""Packing into micro-batches."""

from hypothesis import given
from hypothesis import strategies as st

from longshore_runtime.backends.micro_batches import pack

lengths = st.lists(st.integers(1, 100), max_size=50)


def test_similar_lengths_share_a_micro_batch() -> None:
    assert pack([10, 100, 12, 90, 11], max_padded_tokens=200) == [[1, 3], [2, 4, 0]]


def test_a_sequence_beyond_the_limit_is_alone() -> None:
    assert pack([5, 300, 5], max_padded_tokens=100) == [[1], [0, 2]]


@given(lengths, st.integers(1, 400))
def test_every_sequence_is_in_one_batch_and_the_limit_holds_for_padded_tokens(
    lengths: list[int], max_padded_tokens: int
) -> None:
    batches = pack(lengths, max_padded_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= max_padded_tokens
