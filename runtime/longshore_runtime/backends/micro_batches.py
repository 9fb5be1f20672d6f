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


def pack_share(lengths: Sequence[int], max_padded_tokens: int, rank: int, num_ranks: int) -> list[list[int]]:
    """Do the same for one of several ranks. Empty micro-batches make their number equal on all ranks.

    Sequences are dealt out by length, so that micro-batches of the ranks take about equally long.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    shares = [order[first::num_ranks] for first in range(num_ranks)]
    packed = [pack([lengths[index] for index in share], max_padded_tokens) for share in shares]
    own = [[shares[rank][place] for place in batch] for batch in packed[rank]]
    return own + [[] for _ in range(max(map(len, packed)) - len(own))]
