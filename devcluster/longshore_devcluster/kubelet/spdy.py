"""SPDY/3.1 as port-forwarding uses it: many byte streams over one connection, opened by the client.

Source: the SPDY protocol drafts 3 and 3.1. Priorities, pushed streams and flow control are left out: clients of
Kubernetes neither ask for them nor announce windows.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

_VERSION = 3
_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY = 1, 2, 3, 6, 7
_FIN = 1
_HEADER_BYTES = 8
_MAX_FRAME_BYTES = (1 << 24) - 1
_WORDS = """options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age
allow authorization cache-control connection content-base content-encoding content-language content-length
content-location content-md5 content-range content-type date etag expect expires from host if-match if-modified-since
if-none-match if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate
proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning
www-authenticate method get status"""
_TAIL = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _counted(word: str) -> bytes:
    return struct.pack(">I", len(word)) + word.encode()


DICTIONARY = (
    b"".join(map(_counted, _WORDS.split()))
    + b"".join(map(_counted, ("200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin")))
    + _TAIL.encode()
)
"""What both sides know before the first header: the draft's list of common words (Adler-32 e3c6a7c2)."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The client opened a stream."""

    stream: int
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of a stream; with `is_last` none will follow."""

    stream: int
    data: bytes
    is_last: bool


@dataclass(frozen=True, slots=True)
class Reset:
    """The client gave a stream up."""

    stream: int


@dataclass(frozen=True, slots=True)
class Ping:
    """To be sent back as it is."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class Farewell:
    """The client opens no more streams."""


Event = Opened | Data | Reset | Ping | Farewell


@dataclass
class FrameReader:
    """Turns the client's bytes, however they are cut, into events."""

    _pending: bytearray = field(default_factory=bytearray)
    _unpacker: "zlib._Decompress" = field(default_factory=lambda: zlib.decompressobj(zdict=DICTIONARY))

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that `data` completes. Errors: ValueError for what is no SPDY."""
        self._pending += data
        while len(self._pending) >= _HEADER_BYTES:
            first, second = struct.unpack(">II", self._pending[:_HEADER_BYTES])
            size = _HEADER_BYTES + (second & _MAX_FRAME_BYTES)
            if len(self._pending) < size:
                return
            frame = bytes(self._pending[:size])
            del self._pending[:size]
            yield from self._event(first, second >> 24, frame)

    def _event(self, first: int, flags: int, frame: bytes) -> Iterator[Event]:
        body = frame[_HEADER_BYTES:]
        if not first >> 31:
            yield Data(first, body, bool(flags & _FIN))
            return
        if first >> 16 & 0x7FFF != _VERSION:
            raise ValueError("the frame is not of SPDY version 3")
        kind = first & 0xFFFF
        if kind == _SYN_STREAM:
            stream = struct.unpack(">I", body[:4])[0] & 0x7FFFFFFF
            yield Opened(stream, self._headers(body[10:]))
            if flags & _FIN:
                yield Data(stream, b"", is_last=True)
        elif kind == _RST_STREAM:
            yield Reset(struct.unpack(">I", body[:4])[0] & 0x7FFFFFFF)
        elif kind == _PING:
            yield Ping(frame)
        elif kind == _GOAWAY:
            yield Farewell()

    def _headers(self, packed: bytes) -> dict[str, str]:
        try:
            block = self._unpacker.decompress(packed)
        except zlib.error as error:
            raise ValueError(f"the headers cannot be unpacked: {error}") from error
        (count,), at = struct.unpack(">I", block[:4]), 4
        texts = []
        for _ in range(2 * count):
            (length,) = struct.unpack(">I", block[at : at + 4])
            texts.append(block[at + 4 : at + 4 + length].decode())
            at += 4 + length
        return dict(zip(texts[::2], texts[1::2], strict=True))


class FrameWriter:
    """Makes the server's frames."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(zdict=DICTIONARY)

    def reply(self, stream: int) -> bytes:
        """Accept a stream, without headers."""
        packed = self._packer.compress(struct.pack(">I", 0)) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        return _control(_SYN_REPLY, struct.pack(">I", stream) + packed)

    def data(self, stream: int, data: bytes, *, is_last: bool = False) -> bytes:
        """Return bytes of a stream; with `is_last` we send no more of them."""
        return struct.pack(">II", stream, (_FIN if is_last else 0) << 24 | len(data)) + data


def _control(kind: int, body: bytes) -> bytes:
    return struct.pack(">II", 1 << 31 | _VERSION << 16 | kind, len(body)) + body
