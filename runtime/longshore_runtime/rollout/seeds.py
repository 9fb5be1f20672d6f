"""Seeds of sampling: every response of every round has its own, and a replay has the same."""

import hashlib

from longshore.policy.round import ResponseId


def request_seed(seed: int, purpose: str, response: ResponseId, turn: int = 0) -> int:
    """Return 31 bits from the seed of the job, what is sampled for, which response it is, and which turn of it."""
    which = f"{response}/{turn}" if turn else str(response)
    digest = hashlib.blake2b(f"{seed}/{purpose}/{which}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
