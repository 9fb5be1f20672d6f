"""Runs what a model writes, call by call, in a confined process that keeps its state between them.

Nothing here is trusted by anyone outside: `interpreter` is the other end, and takes all that comes from here for text.
"""

import ast
import contextlib
import linecache
import os
import struct
import sys
import traceback
import types
from typing import Any, Final, NoReturn

from longshore_runtime.sandbox.program import exit_status, flush, offer_names, open_streams

HEADER: Final = struct.Struct("=QQ")
"""Number of a call, and the bytes of its code."""
ANSWER: Final = struct.Struct("=Q")
"""Number of a call that has ended."""
_TRACEBACK_FRAMES: Final = 20


def serve() -> NoReturn:
    """Execute what arrives on descriptor 0, a socket, until the other end is closed or the code ends the process."""
    channel = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)  # What the model writes reads an empty input, not its next calls.
    os.close(null)
    open_streams()
    offer_names(is_function=False)
    sys.argv = [""]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    status, own_pid = 0, os.getpid()
    try:
        while header := _read(channel, HEADER.size):
            number, size = HEADER.unpack(header)
            _execute(_read(channel, size).decode(), f"<call {number}>", vars(module))
            if os.getpid() != own_pid:
                break  # A fork of the code returns here as well.
            os.write(channel, ANSWER.pack(number))
    except SystemExit as exit_:
        status = exit_status(exit_.code)
    finally:
        try:
            flush()
        finally:
            os._exit(status)


def _execute(source: str, name: str, names: dict[str, Any]) -> None:
    """Execute the code of a call, and print its last expression or what it raises, as an interactive session does."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    try:
        statements = ast.parse(source, name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        _print_error(error, None)
        return
    last = statements.body.pop() if statements.body and isinstance(statements.body[-1], ast.Expr) else None
    try:
        exec(compile(statements, name, "exec", dont_inherit=True), names)
        if isinstance(last, ast.Expr):
            sys.displayhook(eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), names))
        _flush_standard()
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the model reads it, whatever it is
        _print_error(error, error.__traceback__ and error.__traceback__.tb_next)


def _print_error(error: BaseException, place: types.TracebackType | None) -> None:
    with contextlib.suppress(Exception):  # The model may have put anything in place of its streams.
        _flush_standard()
    with open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False) as file:
        traceback.print_exception(type(error), error, place, limit=-_TRACEBACK_FRAMES, file=file)


def _flush_standard() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _read(channel: int, size: int) -> bytes:
    """Return so many bytes, or none at the end."""
    content = b""
    while len(content) < size:
        if not (chunk := os.read(channel, size - len(content))):
            return b""
        content += chunk
    return content
