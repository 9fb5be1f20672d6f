"""Place of a trainer rank among the others."""

from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """Rank of a replica, their number, and the address where they meet (that of rank 0)."""

    rank: int = 0
    size: int = 1
    host: str = "127.0.0.1"
    port: int = 0
