"""Soft punishment of responses that come close to the limit (DAPO, section 3.4)."""


def overlong_punishment(num_tokens: int, *, max_tokens: int, buffer_tokens: int, penalty: float) -> float:
    """Return what is added to the reward of a response of `num_tokens`: 0 down to -`penalty` (DAPO, equation 13).

    The last `buffer_tokens` before `max_tokens` are punished in proportion to how many of them were used; a response
    at the limit, whether it ended there or was cut, gets the whole penalty. No buffer, no punishment.
    """
    if buffer_tokens == 0:
        return 0.0
    num_used = num_tokens - (max_tokens - buffer_tokens)
    return -penalty * min(max(num_used / buffer_tokens, 0.0), 1.0)
