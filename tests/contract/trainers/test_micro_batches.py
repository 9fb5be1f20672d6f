"""Which sequences are computed together."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_runtime.backends.micro_batches import pack, pack_rows

lengths = st.lists(st.integers(1, 100), max_size=50)


def test_a_short_sequence_fills_the_room_behind_a_long_one() -> None:
    assert pack([10, 100, 12, 90, 11], max_tokens=110) == [[1, 0], [3, 2], [4]]


def test_rows_of_similar_length_share_a_micro_batch() -> None:
    assert pack_rows([10, 100, 12, 95, 11], max_padded_tokens=200) == [[1, 3], [2, 4, 0]]


@pytest.mark.parametrize("pack", [pack, pack_rows])
def test_a_sequence_beyond_the_limit_is_alone(pack: Callable[[list[int], int], list[list[int]]]) -> None:
    assert pack([5, 300, 5], 100) == [[1], [0, 2]]


@given(lengths, st.integers(1, 400))
def test_every_sequence_is_in_one_batch_and_the_limit_holds_for_tokens(lengths: list[int], max_tokens: int) -> None:
    batches = pack(lengths, max_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or sum(lengths[index] for index in batch) <= max_tokens


@given(lengths, st.integers(1, 400))
def test_no_two_packed_batches_fit_into_one(lengths: list[int], max_tokens: int) -> None:
    sizes = sorted(sum(lengths[index] for index in batch) for batch in pack(lengths, max_tokens))
    assert len(sizes) < 2 or sizes[0] + sizes[1] > max_tokens


@given(lengths, st.integers(1, 400))
def test_rows_are_each_in_one_batch_of_which_at_most_a_tenth_is_padding(
    lengths: list[int], max_padded_tokens: int
) -> None:
    batches = pack_rows(lengths, max_padded_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        padded_tokens = len(batch) * max(lengths[index] for index in batch)
        assert len(batch) == 1 or padded_tokens <= max_padded_tokens
        assert sum(lengths[index] for index in batch) >= 0.9 * padded_tokens
