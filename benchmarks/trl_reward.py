"""The reward of `make bench NAME=trl` with a real model, as both sides take it."""


def distinct(completions: list[str], **_: object) -> list[float]:
    """Return the share of distinct characters of each response.

    A small model that was not trained for it never counts rightly. With equal rewards there would be no gradient, and
    Longshore would save the backward pass.
    """
    return [len(set(text)) / max(1, len(text)) for text in completions]
