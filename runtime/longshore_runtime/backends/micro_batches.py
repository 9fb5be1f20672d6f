"""Pack sequences of similar length into micro-batches. Pure."""

from collections.abc import Sequence


def pack(lengths: Sequence[int], max_padded_tokens: int) -> list[list[int]]:
    """Return the indices of each micro-batch, longest first. Only a single sequence may exceed `max_tokens`."""
    batches: list[list[int]] = []
    width = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batches and width * (len(batches[-1]) + 1) <= max_padded_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
            width = lengths[index]
    return batches
