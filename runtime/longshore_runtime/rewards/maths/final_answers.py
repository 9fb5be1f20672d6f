"""Finds the final answer in a response: the last of what is marked as one, else the last number."""

import math
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from longshore_runtime.rewards.thinking import after_thinking, is_thinking

_MARK: Final = re.compile(r"####[ \t]*([^\n]*)")
_BOX: Final = re.compile(r"\\(?:boxed|fbox)\s*")
_LETTER: Final = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0400-\u04ff"
_CJK: Final = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_HEADING: Final = re.compile(
    rf"(?:[{_LETTER}]{{3}}|[{_CJK}]{{2}})[^:：]*(?:(?<!\d)[:：]|[:：](?!\d))"
    r"|(?:case|example|method|part|phase|problem|question|section|step) ?\d+\W+\w"
    rf"|\(?\d{{1,2}}[.)](?:\s+\**(?!(?:and|or)\b)[{_LETTER}]{{2}}|\s*\**[{_CJK}])",
    re.IGNORECASE,
)
"""Pattern of a line that can only begin a heading: `Final Answer:`, `Step 2 - add`, `3. Check the sum`."""
_WORDS: Final = re.compile(
    rf"(?!(?:yes|no|true|false)\W*$)(?![{_LETTER}]+[(\[{{^/=_\\])"
    rf"(?:[{_LETTER}]{{3}}|[{_LETTER}]{{1,2}} +[{_LETTER}]{{2}}|[{_CJK}]{{2}})",
    re.IGNORECASE,
)
"""Pattern of the begin of an answer in words, and of many a heading; not of `sqrt(2)`."""
_BEFORE_WORDS: Final = re.compile(r"[^\w\\$(]*")
"""Pattern of ornaments before words, such as bold type and pictures."""
_SENTENCE: Final = re.compile(r"answer(?:\s+is|\s*:)[:*\s]*([^\n]+)", re.IGNORECASE)
_SENTENCE_END: Final = re.compile(r"\.(?:\s|\**$)|\.?\s+I hope")
_FORMULA: Final = re.compile(
    r"\$\$(?P<display>.+?)\$\$|\\\[(?P<bracket>.+?)\\\]|\\\((?P<parenthesis>.+?)\\\)|(?<!\\)\$(?!\d[\d,.]*\s+[a-z]{2})(?P<inline>[^$\n]+?)(?<!\\)\$(?!\d)",
    re.DOTALL,
)
"""Pattern of a formula between dollar signs, unless one of them begins an amount: `$18 per day ... $2`."""
_NUMBER: Final = re.compile(
    r"(?<![\w.,])[-+]?(?:\$|€|£)?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+|/\d+)?(?:\s*\\?%)?"
)
_STATED_NUMBER: Final = re.compile(
    rf"(?:\b(?:is|are|was|were|be|equals?|gets?|gives?)\b|[=:])[:*\s]*({_NUMBER.pattern})", re.IGNORECASE
)
"""Pattern of a number that is more than a part of a sentence."""
_VARIABLE: Final = re.compile(r"\\?[A-Za-z]+(?:_\w)?")
_END_CHARACTERS: Final = 4_000
"""Number of characters at the end of a response in which an unmarked answer is looked for."""


def final_answer(text: str, *, in_words: bool = False) -> str | None:
    r"""Return the final answer of a response as it is written; None: the text has none.

    What follows the thinking comes first, then the whole text. In either, the last `####` line or `\boxed{}` counts,
    whichever comes later, but no `####` line that is a Markdown heading. Without either: what follows the last "answer
    is" or "answer:", the last formula, the last number. An empty mark is no answer. `in_words` says that the reference
    is words, as headings are.
    """
    after = after_thinking(text)
    found = _answer_in(after, in_words=in_words)
    if found is None and len(after) < len(text):
        return _answer_in(text, in_words=in_words)
    return found


def answer_of_cut(prompt: str, text: str, *, in_words: bool = False) -> str | None:
    """Return the final answer of a response that was cut at its largest length, or None if no answer is certain.

    It must be marked, the mark complete and outside the thinking: anything else might not have been the last word.
    """
    if is_thinking(prompt, text):
        return None
    return _marked(after_thinking(text), in_words=in_words, is_cut=True) or None


def marked_answer(reference: str) -> str | None:
    """Return the content of the last mark of a reference, or None if there is no mark."""
    return _content(_last(_BOX.finditer(reference)), _last(_MARK.finditer(reference)))


def begins_with_words(answer: str) -> bool:
    """Return whether an answer begins as a heading may."""
    return _WORDS.match(_without_ornaments(answer)) is not None


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


@dataclass(frozen=True)
class _Surroundings:
    """Context that tells an answer in words from a heading."""

    in_words: bool
    """Whether the reference is words."""
    has_box: bool
    end: float
    """End of the response without blanks; infinite where it was cut, as more would have followed."""


def _answer_in(text: str, *, in_words: bool) -> str | None:
    marked = _marked(text, in_words=in_words)
    if marked is not None:
        return marked or None
    end = text[-_END_CHARACTERS:]
    sentences = _SENTENCE.findall(end)
    tail = _SENTENCE_END.split(sentences[-1])[0] if sentences else end
    formula = _last(_FORMULA.finditer(tail))
    if formula is not None:
        content = next(filter(None, formula.groups())).strip()
        later = (_NUMBER if _VARIABLE.fullmatch(content) else _STATED_NUMBER).findall(tail, formula.end())
        return later[-1].rstrip(",") if later else content
    if sentences:
        return tail.lstrip(" *").rstrip(" *.") or None
    numbers = _NUMBER.findall(end)
    return numbers[-1].rstrip(",") if numbers else None


def _marked(text: str, *, in_words: bool, is_cut: bool = False) -> str | None:
    """Return what the last mark holds, empty if it is incomplete; None: there is no mark."""
    box = _last(_BOX.finditer(text))
    end = math.inf if is_cut else len(text.rstrip())
    context = _Surroundings(in_words=in_words, has_box=box is not None, end=end)
    mark = _last(mark for mark in _MARK.finditer(text) if _is_answer(mark, context))
    return _content(box, mark, is_cut=is_cut)


def _last(found: Iterable[re.Match[str]]) -> re.Match[str] | None:
    return next(iter(deque(found, maxlen=1)), None)


def _content(box: re.Match[str] | None, mark: re.Match[str] | None, *, is_cut: bool = False) -> str | None:
    """Return what the later of the two marks, empty for a line in which the text was cut; None: there is neither."""
    if box is not None and (mark is None or box.start() > mark.start()):
        return _argument(box.string, box.end()).strip()
    if mark is None:
        return None
    return "" if is_cut and mark.end() == len(mark.string) else mark.group(1).strip()


def _is_answer(mark: re.Match[str], context: _Surroundings) -> bool:
    """Return whether a `####` of a response marks an answer, and does not begin a heading.

    Where both may be, two of three must speak for an answer: the reference is words, nothing follows, there is no box.
    """
    text = mark.string
    line_start = text.rfind("\n", 0, mark.start()) + 1
    if re.search(r"\w", text[line_start : mark.start()]):
        return True  # A heading begins its line.
    content = _without_ornaments(mark.group(1))
    if _HEADING.match(content):
        return False
    if not _WORDS.match(content):
        return True
    return context.in_words + (mark.end() >= context.end) + (not context.has_box) >= 2


def _without_ornaments(text: str) -> str:
    return _BEFORE_WORDS.sub("", text, count=1)


def _argument(text: str, start: int) -> str:
    """Return the argument of a LaTeX command that ends at `start`: a group in braces, or one token.

    The result is empty if the argument does not end.
    """
    if start >= len(text) or text[start] != "{":
        token = re.compile(r"\\[A-Za-z]+|[^\s\\]").match(text, start)
        return token.group() if token else ""
    depth = 0
    for found in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found.group(), 0)
        if depth == 0:
            return text[start + 1 : found.start()]
    return ""
