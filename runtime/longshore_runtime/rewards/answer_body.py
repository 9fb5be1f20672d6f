"""Read the bodies of answers of services outside the job, up to a size."""

import zlib
from collections.abc import AsyncIterable
from typing import Final

NOT_COMPRESSED: Final = {"Accept-Encoding": "identity"}
"""Header of requests whose answers are read here."""
_AUTO_DETECTED: Final = zlib.MAX_WBITS | 32
"""Window size for zlib that accepts both its own header and that of gzip."""
_INFLATED: Final = frozenset({"gzip", "x-gzip", "deflate"})


class UnreadableBody(ValueError):
    """Raised for a body that is too large or wrongly compressed; the message continues `it answered with `."""


async def read_body(chunks: AsyncIterable[bytes], encoding: str | None, limit_bytes: int) -> bytes:
    """Return the decoded body of an answer; raises UnreadableBody.

    Args:
        chunks: the body as it arrives, not decoded.
        encoding: the header Content-Encoding; some services compress although nobody asked them to.
        limit_bytes: size above which neither the arriving nor the decoded body is kept.
    """
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
    coding = (encoding or "identity").strip().lower()
    if coding == "identity":
        return bytes(body)
    if coding not in _INFLATED:
        raise UnreadableBody(f"the Content-Encoding {coding[:40]!r}, which was not asked for")
    return _inflated(bytes(body), coding, limit_bytes)


def _inflated(body: bytes, coding: str, limit_bytes: int) -> bytes:
    decoder = zlib.decompressobj(_AUTO_DETECTED)
    try:
        decoded = decoder.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise UnreadableBody(f"a body that is not {coding}") from error
    if len(decoded) > limit_bytes:
        raise _too_large(limit_bytes)
    if not decoder.eof:
        raise UnreadableBody(f"an incomplete body of {coding}")
    return decoded


def _too_large(limit_bytes: int) -> UnreadableBody:
    return UnreadableBody(f"more than {limit_bytes >> 20} MiB")
