"""Describe what code of users raises and returns, in one line of bounded length.

Such objects may do anything when they are turned into text: raise, be very long, or hold what cannot be encoded.
"""

import linecache
import sysconfig
from pathlib import Path
from traceback import walk_tb
from typing import Final

import longshore
import longshore_runtime

_MAX_TEXT: Final = 240
"""Largest number of characters of an exception's text or of a value."""
_MAX_LINE: Final = 60
"""Largest number of characters of a line of source code."""
_NUM_FRAMES: Final = 3
_OWN: Final = (*longshore.__path__, *longshore_runtime.__path__)
_STANDARD_LIBRARY: Final = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen ")
_PACKAGES: Final = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
"""Directories of installed packages, which may be below the standard library."""


def shortened(text: str, limit: int) -> str:
    """Return the text in one line, with its middle left out if it has more than `limit` characters."""
    if len(text) > limit:
        num_last = limit // 3
        text = f"{text[: limit - num_last]} … {text[-num_last:]} ({len(text):,} characters)"
    return one_line(text)


def one_line(text: str) -> str:
    """Return the text without line breaks, and with what cannot be encoded, such as a lone surrogate, as an escape."""
    return " ".join(text.encode("utf-8", "backslashreplace").decode().split())


def shown(value: object, limit: int = _MAX_TEXT) -> str:
    """Return a value as Python shows it."""
    try:
        return shortened(repr(value), limit)
    except BaseException as error:  # noqa: BLE001 - code of users may raise anything
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def error_text(error: BaseException) -> str:
    """Return the type and the text of an exception; of a group, also those of its first exception."""
    try:
        text = shortened(str(error), _MAX_TEXT)
    except BaseException as failure:  # noqa: BLE001 - code of users may raise anything
        text = f"<its text cannot be shown: str() raises {type(failure).__name__}>"
    described = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        return f"{described}; the first: {error_text(error.exceptions[0])}"
    return described


def error_with_place(error: BaseException) -> str:
    """Return `error_text`, and the last places of the user's code that the exception has passed, outermost first."""
    raised = error
    while isinstance(raised, BaseExceptionGroup):
        raised = raised.exceptions[0]
    places = " > ".join(_places(raised) or _places(error))
    return f"{error_text(error)} at {places}" if places else error_text(error)


def _places(error: BaseException) -> list[str]:
    """Return places outside of installed packages, or in them if there are no others."""
    frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walk_tb(error.__traceback__)]
    in_packages = [frame for frame in frames if frame[0].startswith(_PACKAGES)]
    others = [frame for frame in frames if not frame[0].startswith((*_PACKAGES, *_STANDARD_LIBRARY, *_OWN))]
    return list(map(_place, (others or in_packages)[-_NUM_FRAMES:]))


def _place(frame: tuple[str, int, str]) -> str:
    file, line, function = frame
    source = shortened(linecache.getline(file, line).strip(), _MAX_LINE)
    return f"{Path(file).name}:{line} in {function}" + (f": {source}" if source else "")
