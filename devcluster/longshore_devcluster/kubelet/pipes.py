"""The file descriptors between an exec's client and its process."""

import asyncio
import os
from dataclasses import dataclass


@dataclass
class Ends:
    """Our ends and the child's."""

    child: tuple[int, int, int]
    to_child: int | None
    from_child: list[tuple[int, int]]
    """(stream number, file descriptor): 1 standard output, 2 standard error."""

    def close_child(self) -> None:
        """Close what now belongs to the process alone, so that its end is seen."""
        for fd in self.child:
            os.close(fd)

    def close(self) -> None:
        """Close our ends, where nothing has taken them over."""
        for fd in [self.to_child, *(fd for _, fd in self.from_child)]:
            if fd is not None:
                os.close(fd)


def open_pipes(*, with_stdin: bool) -> Ends:
    """Open three pipes; without `with_stdin` the process reads end of file at once."""
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    in_read, in_write = os.pipe() if with_stdin else (os.open(os.devnull, os.O_RDONLY), None)
    return Ends((in_read, out_write, err_write), in_write, [(1, out_read), (2, err_read)])


async def reader_of(fd: int) -> asyncio.StreamReader:
    """Return an asyncio reader that owns a file descriptor."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(fd, "rb", buffering=0))
    return reader


async def writer_of(fd: int) -> asyncio.StreamWriter:
    """Return an asyncio writer that owns a file descriptor."""
    loop = asyncio.get_running_loop()
    file = os.fdopen(fd, "wb", buffering=0)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, file)
    return asyncio.StreamWriter(transport, protocol, None, loop)
