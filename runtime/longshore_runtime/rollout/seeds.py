"""Seeds of sampling: every response of every round has its own, and a replay has the same."""

import hashlib

from longshore.policy.round import ResponseId


def request_seed(seed: int, purpose: str, response: ResponseId) -> int:
    """Return 31 bits from the seed of the job, what is sampled for, and which response it is."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{response}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
