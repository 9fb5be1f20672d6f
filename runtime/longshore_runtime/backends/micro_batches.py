"""Packing of sequences into micro-batches of similar length. Pure."""

from collections.abc import Sequence


def pack(lengths: Sequence[int], max_padded_tokens: int) -> list[list[int]]:
    """Indices of each micro-batch, longest first; none holds more padded tokens, unless by a single sequence."""
    batches: list[list[int]] = []
    width = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batches and width * (len(batches[-1]) + 1) <= max_padded_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
            width = lengths[index]
    return batches
