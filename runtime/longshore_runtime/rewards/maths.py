"""Answers compared as mathematics: 1/2 equals 0.5, and `#### 1,000` equals \\boxed{1000}."""

import logging
import re
from typing import Final

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

logging.getLogger("math_verify").setLevel(logging.ERROR)  # It warns of every call without its own time limit.

_FINAL_MARK: Final = re.compile(r"####\s*(.+)")
_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}\b)")
_KINDS: Final = (LatexExtractionConfig(), ExprExtractionConfig())


def answers_agree(response: str, answer: str) -> bool:
    """Whether the final answer of a response equals the reference; a response without an answer does not.

    The caller limits the time: math-verify's own limit is an alarm signal, which works in a main thread only.
    """
    reference = parse(_final(answer), _KINDS, parsing_timeout=None)
    if not reference:
        raise ValueError(f"the reference answer {answer[-80:]!r} holds no mathematical expression")
    given = parse(_final(response), _KINDS, parsing_timeout=None)
    return bool(given) and bool(verify(reference, given, timeout_seconds=None))


def _final(text: str) -> str:
    """What follows the last `####` (the convention of GSM8K), else the whole text."""
    marked = _FINAL_MARK.findall(text)
    return _THOUSANDS.sub("", marked[-1].strip() if marked else text)
