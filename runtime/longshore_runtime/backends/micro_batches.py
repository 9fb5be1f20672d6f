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


def pack_share(lengths: Sequence[int], max_padded_tokens: int, rank: int, num_ranks: int) -> list[list[int]]:
    """Likewise of the sequences that fall to one of several ranks; empty ones make it as many on each.

    Sequences are dealt out by length, so that what the ranks do at a time takes them equally long.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    shares = [order[first::num_ranks] for first in range(num_ranks)]
    packed = [pack([lengths[index] for index in share], max_padded_tokens) for share in shares]
    own = [[shares[rank][place] for place in batch] for batch in packed[rank]]
    return own + [[] for _ in range(max(map(len, packed)) - len(own))]
