"""SPDY frames, as they come in pieces of any size."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_devcluster.kubelet.spdy import DICTIONARY, Data, Event, FrameReader, FrameWriter, Opened, Ping, Reset

CONTROL = 1 << 31 | 3 << 16
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


class Client:
    """Makes a client's frames."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(zdict=DICTIONARY)

    def opens(self, stream: int, headers: dict[str, str], flags: int = 0) -> bytes:
        words = [word.encode() for pair in headers.items() for word in pair]
        block = struct.pack(">I", len(headers)) + b"".join(struct.pack(">I", len(word)) + word for word in words)
        packed = self._packer.compress(block) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        body = struct.pack(">IIBB", stream, 0, 0, 0) + packed
        return struct.pack(">II", CONTROL | 1, flags << 24 | len(body)) + body


def read(data: bytes, *cuts: int) -> list[Event]:
    reader, events, before = FrameReader(), [], 0
    for cut in (*sorted(cut % (len(data) + 1) for cut in cuts), len(data)):
        events += list(reader.feed(data[before:cut]))
        before = cut
    return events


def test_the_dictionary_is_that_of_the_draft() -> None:
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


@given(st.lists(st.dictionaries(TEXT, TEXT, max_size=4), max_size=4), st.binary(max_size=100), st.lists(st.integers(0)))
def test_events_do_not_depend_on_how_the_bytes_are_cut(
    headers: list[dict[str, str]], data: bytes, cuts: list[int]
) -> None:
    client = Client()
    sent = b"".join(client.opens(2 * number + 1, one) for number, one in enumerate(headers))
    sent += FrameWriter().data(1, data, is_last=True)
    opened: list[Event] = [Opened(2 * number + 1, one) for number, one in enumerate(headers)]
    assert read(sent, *cuts) == [*opened, Data(1, data, is_last=True)]


def test_a_stream_may_be_opened_and_ended_in_one() -> None:
    assert read(Client().opens(1, {"streamtype": "error"}, flags=1)) == [
        Opened(1, {"streamtype": "error"}),
        Data(1, b"", is_last=True),
    ]


def test_pings_and_resets_are_reported_and_settings_are_not() -> None:
    ping = struct.pack(">III", CONTROL | 6, 4, 7)
    reset = struct.pack(">IIII", CONTROL | 3, 8, 5, 1)
    settings = struct.pack(">III", CONTROL | 4, 4, 0)
    assert read(ping + settings + reset) == [Ping(ping), Reset(5)]


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">II", 1 << 31 | 2 << 16 | 1, 0),
        struct.pack(">II", CONTROL | 1, 14) + bytes(10) + b"nope",
    ],
    ids=["version 2", "headers that are not packed"],
)
def test_what_is_no_spdy_is_an_error(frame: bytes) -> None:
    with pytest.raises(ValueError, match=r"version 3|unpacked"):
        read(frame)
