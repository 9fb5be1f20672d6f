"""Choose which sequences are computed together. Pure."""

from collections.abc import Sequence
from typing import Final

_LEAST_FILLED: Final = 0.9
"""Share of the tokens of padded rows that are not padding."""


def pack(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Return the indices of the sequences of each micro-batch, for models that compute them one behind the other.

    Longest first, each into the first micro-batch that has room. Only a single sequence may exceed `max_tokens`.
    """
    batches: list[list[int]] = []
    rooms: list[int] = []
    for index in _longest_first(lengths):
        length = lengths[index]
        number = next((number for number, room in enumerate(rooms) if length <= room), None)
        if number is None:
            batches.append([index])
            rooms.append(max_tokens - length)
        else:
            batches[number].append(index)
            rooms[number] -= length
    return batches


def pack_rows(lengths: Sequence[int], max_padded_tokens: int) -> list[list[int]]:
    """Return the indices of the sequences of each micro-batch, for models that compute them as padded rows.

    Longest first. Only a single sequence may exceed `max_padded_tokens`, and at most a tenth of a batch is padding.
    """
    batches: list[list[int]] = []
    num_tokens = width = 0
    for index in _longest_first(lengths):
        length = lengths[index]
        padded_tokens = width * (len(batches[-1]) + 1) if batches else 0
        if batches and padded_tokens <= max_padded_tokens and num_tokens + length >= _LEAST_FILLED * padded_tokens:
            batches[-1].append(index)
            num_tokens += length
        else:
            batches.append([index])
            num_tokens = width = length
    return batches


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
