"""Runs one model-written program in a confined process. Nothing here is trusted by anyone outside."""

import atexit
import json
import os
import sys
import threading
import traceback
import types
from typing import Any, Final, NoReturn

from longshore_runtime.sandbox import literals

CLAIM: Final = 3
"""Descriptor on which a called function's value goes out, as JSON."""
_NAME: Final = "program.py"
_TRACEBACK_FRAMES: Final = 20


def run(source: bytes, is_function: bool) -> NoReturn:
    """Run the program as a script, or define its functions and call one; descriptor 0 holds input or call."""
    call = json.loads(_read_all(0)) if is_function else None
    _open_streams()
    sys.argv = [_NAME]
    status = 1
    try:
        module = types.ModuleType("program" if is_function else "__main__")
        sys.modules[module.__name__] = module
        exec(compile(source, _NAME, "exec"), module.__dict__)
        if call is not None:
            _write_all(CLAIM, _returned(_entry(module, call["entry"]), call).encode())
        _wind_up()
        status = 0
    except SystemExit as exit_:
        status = _exit_status(exit_.code)
    except BaseException:  # noqa: BLE001 - the end of the program, whatever it raised
        traceback.print_exc(limit=-_TRACEBACK_FRAMES)
    finally:
        _flush()
        os._exit(status)


def _entry(module: types.ModuleType, name: str) -> Any:
    owner, _, method = name.rpartition(".")
    return getattr(getattr(module, owner)(), method) if owner else getattr(module, method)


def _returned(function: Any, call: dict[str, Any]) -> str:
    """Return the value of one call as JSON, or of several as literals."""
    if "calls" not in call:
        return json.dumps(function(*call["arguments"]))
    return literals.dumps([function(*literals.loads(given), **literals.loads(named)) for given, named in call["calls"]])


def _open_streams() -> None:
    for name, descriptor, mode, errors in (
        ("stdin", 0, "r", "strict"),
        ("stdout", 1, "w", "strict"),
        ("stderr", 2, "w", "backslashreplace"),
    ):
        stream = open(descriptor, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115 - the program's
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _wind_up() -> None:
    """What the interpreter does at its end."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001, S112 - the program may have put anything in their place
            continue


def _exit_status(code: object) -> int:
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
