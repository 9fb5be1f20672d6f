"""Runs one model-written program in a confined process. Nothing here is trusted by anyone outside."""

import atexit
import builtins
import gc
import io
import json
import os
import sys
import threading
import traceback
import types
import typing
from collections.abc import Callable
from typing import Any, Final, NoReturn

from longshore_runtime.sandbox import literals

CLAIM: Final = 3
"""Descriptor on which a called function's value goes out, as JSON."""
_NAME: Final = "program.py"
_TRACEBACK_FRAMES: Final = 20
_METHODS: Final = "Solution"
"""Class whose methods data sets name as functions, as on LeetCode."""


def run(source: bytes, is_function: bool) -> NoReturn:
    """Run the program as a script, or define its functions and call one; descriptor 0 holds input or call."""
    call = json.loads(_read_all(0)) if is_function else None
    open_streams()
    offer_names(is_function=is_function)
    sys.argv = [_NAME]
    status = 1
    try:
        ended = _status_after(_execute, source, call)
        status = _status_after(_wind_up) or ended
    except BaseException:  # noqa: BLE001 - the end of the program, whatever it raised
        traceback.print_exc(limit=-_TRACEBACK_FRAMES)
    finally:
        try:
            flush()
        finally:
            os._exit(status)


def offer_names(*, is_function: bool) -> None:
    """Define what programs use without an import: `exit` and `quit`, and for functions the names of `typing`.

    As builtins, they give way to names that the program defines, and none of them is taken for its function.
    """
    names = {"exit": sys.exit, "quit": sys.exit}
    if is_function:
        names |= {name: getattr(typing, name) for name in typing.__all__}
    for name, value in names.items():
        vars(builtins).setdefault(name, value)


def _execute(source: bytes, call: dict[str, Any] | None) -> None:
    module = types.ModuleType("__main__" if call is None else "program")
    sys.modules[module.__name__] = module
    exec(compile(source, _NAME, "exec"), module.__dict__)
    if call is not None:
        _write_all(CLAIM, _returned(_entry(module, call["entry"]), call).encode())


def _status_after(part: Callable[..., None], *arguments: object) -> int:
    """Return the exit status with which a part of the run ends."""
    try:
        part(*arguments)
    except SystemExit as exit_:
        return exit_status(exit_.code)
    return 0


def _entry(module: types.ModuleType, name: str) -> Any:
    owner, _, method = name.rpartition(".")
    if not owner and not hasattr(module, method) and isinstance(getattr(module, _METHODS, None), type):
        owner = _METHODS
    return getattr(getattr(module, owner)(), method) if owner else getattr(module, method)


def _returned(function: Any, call: dict[str, Any]) -> str:
    """Return the value of one call as JSON, or of several as literals."""
    if "calls" not in call:
        return json.dumps(function(*call["arguments"]))
    return literals.dumps([function(*literals.loads(given), **literals.loads(named)) for given, named in call["calls"]])


def open_streams() -> None:
    """Make the standard streams those of the program."""
    for name, descriptor, mode, errors in (
        ("stdin", 0, "r", "strict"),
        ("stdout", 1, "w", "strict"),
        ("stderr", 2, "w", "backslashreplace"),
    ):
        stream = open(descriptor, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115 - the program's
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _wind_up() -> None:
    """Do what the interpreter does at its end: wait for threads, run exit functions, flush the output."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    stdout = getattr(sys, "stdout", None)
    if stdout is not None and not getattr(stdout, "closed", False):
        stdout.flush()


def flush() -> None:
    """Write out what is buffered, also in files that the program has opened itself, such as `open(1, "w")`."""
    opened = [found for found in gc.get_objects() if issubclass(type(found), io.IOBase)]
    standard = [getattr(sys, name, None) for name in ("stdout", "stderr")]
    for stream in (*standard, *opened):
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001, S112 - the program may have put anything in their place
            continue


def exit_status(code: object) -> int:
    """Return the exit status that the code of a SystemExit means, and print one that is a text."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)  # noqa: T201 - as the interpreter does
    return 1


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def _write_all(descriptor: int, data: bytes) -> None:
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
