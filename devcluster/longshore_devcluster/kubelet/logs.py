"""Reads the log files that the shims write."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from longshore_devcluster.kubelet.waiting import Signal
from longshore_kube.times import parse_time

_BLOCK_BYTES = 65536


@dataclass(frozen=True)
class LogOptions:
    """What `kubectl logs` may ask for. `since_s` is a Unix time."""

    follow: bool = False
    tail_lines: int | None = None
    since_s: float | None = None
    limit_bytes: int | None = None
    timestamps: bool = False


class LogWatch:
    """Tells readers of one container instance about new lines and about its end."""

    def __init__(self) -> None:
        self.changed = Signal()
        self.ended = False

    def finish(self) -> None:
        """Tell readers that no more lines will come."""
        self.ended = True
        self.changed.notify()


async def read_log(path: Path, options: LogOptions, watch: LogWatch | None) -> AsyncIterator[bytes]:
    """Yield the log in blocks; with `follow`, until the instance that `watch` stands for has ended."""
    left_bytes = options.limit_bytes
    offset = tail_offset(path, options.tail_lines)
    while True:
        ended = watch is None or watch.ended
        changed = None if watch is None else watch.changed.next
        block, offset = read_block(path, offset)
        text = b"".join(render(line, options) for line in block)
        if left_bytes is not None:
            text = text[:left_bytes]
            left_bytes -= len(text)
        if text:
            yield text
        if left_bytes == 0:
            return
        if block:
            continue
        if not options.follow or ended or changed is None:
            return
        await changed.wait()


def read_block(path: Path, offset: int) -> tuple[list[bytes], int]:
    """Return complete lines from `offset` on, without their newlines, and the offset after them."""
    if not path.exists():
        return [], offset
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(_BLOCK_BYTES)
    # A line of the log is never longer than the pieces that the shim writes, so a block holds at least one.
    end = data.rfind(b"\n") + 1
    return data[: end - 1].split(b"\n") if end else [], offset + end


def tail_offset(path: Path, num_lines: int | None) -> int:
    """Return where the last `num_lines` lines begin; 0 for all of them."""
    if num_lines is None or not path.exists():
        return 0
    with path.open("rb") as file:
        position = file.seek(0, 2)
        # The newline that ends the last line does not begin another.
        wanted, data = num_lines + 1, b""
        while position > 0 and data.count(b"\n") < wanted:
            step = min(_BLOCK_BYTES, position)
            position -= step
            file.seek(position)
            data = file.read(step) + data
    cut = len(data)
    for _ in range(wanted):
        cut = data.rfind(b"\n", 0, cut)
        if cut < 0:
            return position
    return position + cut + 1


def render(line: bytes, options: LogOptions) -> bytes:
    """Return one stored line as the reader wants it; empty when it is older than asked for."""
    stamp, _, tag, text = line.split(b" ", 3)
    if options.since_s is not None and parse_time(stamp.decode()[:26] + "Z").timestamp() < options.since_s:
        return b""
    prefix = stamp + b" " if options.timestamps else b""
    return prefix + text + (b"\n" if tag == b"F" else b"")


def last_lines(path: Path, num_lines: int, limit_bytes: int) -> str:
    """Return the end of a log as text, for the termination message."""
    text = b"".join(iter_rendered(path, tail_offset(path, num_lines)))
    return text[-limit_bytes:].decode(errors="replace")


def iter_rendered(path: Path, offset: int) -> Iterator[bytes]:
    """Yield rendered lines from an offset to the present end."""
    while True:
        block, offset = read_block(path, offset)
        if not block:
            return
        yield from (render(line, LogOptions()) for line in block)
