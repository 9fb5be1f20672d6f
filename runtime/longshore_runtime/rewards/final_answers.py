"""Finds the final answer in a response: the last of what is marked as one, else the last number."""

import re
from collections import deque
from typing import Final

_MARK: Final = re.compile(r"####[ \t]*([^\n]*)")
_BOX: Final = re.compile(r"\\(?:boxed|fbox)\s*")
_SENTENCE: Final = re.compile(r"answer(?:\s+is|\s*:)[:*\s]*([^\n]+)", re.IGNORECASE)
_SENTENCE_END: Final = re.compile(r"\.(?:\s|\**$)|\.?\s+I hope")
_FORMULA: Final = re.compile(
    r"\$\$(?P<display>.+?)\$\$|\\\[(?P<bracket>.+?)\\\]|\\\((?P<parenthesis>.+?)\\\)|(?<!\\)\$(?P<inline>[^$\n]+?)(?<!\\)\$",
    re.DOTALL,
)
_NUMBER: Final = re.compile(
    r"(?<![\w.,])[-+]?(?:\$|€|£)?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+|/\d+)?(?:\s*\\?%)?"
)
_END_CHARACTERS: Final = 4_000
"""Characters at the end of a response in which an unmarked answer is looked for."""


def final_answer(text: str) -> str | None:
    """The final answer as it is written; None: the text has none.

    The last `####` line or `\\boxed{}` counts, whichever comes later. Without either: what follows the last "answer is"
    or "answer:", the last formula, the last number. An empty mark is no answer.
    """
    marked = _last_marked(text)
    if marked is not None:
        return marked or None
    end = text[-_END_CHARACTERS:]
    sentences = _SENTENCE.findall(end)
    tail = _SENTENCE_END.split(sentences[-1])[0] if sentences else end
    formulas = [next(filter(None, found.groups())) for found in _FORMULA.finditer(tail)]
    if formulas:
        return formulas[-1].strip()
    if sentences:
        return tail.strip(" *.") or None
    numbers = _NUMBER.findall(end)
    return numbers[-1].rstrip(",") if numbers else None


def has_mark(text: str) -> bool:
    """Return whether a final answer is marked in it."""
    return "####" in text or _BOX.search(text) is not None


def is_balanced(text: str) -> bool:
    """Return whether every brace has its partner; escaped ones are no braces."""
    depth = 0
    for brace in re.findall(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


def _last_marked(text: str) -> str | None:
    """Return the content of the last mark; None: there is no mark."""
    mark, box = (next(iter(deque(pattern.finditer(text), maxlen=1)), None) for pattern in (_MARK, _BOX))
    if box is not None and (mark is None or box.start() > mark.start()):
        return _argument(text, box.end()).strip()
    return None if mark is None else mark.group(1).strip()


def _argument(text: str, start: int) -> str:
    """What a LaTeX command takes that ends at `start`: a group in braces, or one token. Empty if it does not end."""
    if start >= len(text) or text[start] != "{":
        token = re.compile(r"\\[A-Za-z]+|[^\s\\]").match(text, start)
        return token.group() if token else ""
    depth = 0
    for found in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found.group(), 0)
        if depth == 0:
            return text[start + 1 : found.start()]
    return ""
