"""Reference answers of mathematical rows: which can be compared with, found out before anything is sampled."""

import re
from typing import Final

from longshore_runtime.rewards.maths.answer_notation import tidied
from longshore_runtime.rewards.maths.final_answers import has_mark, is_balanced, marked_answer

MAX_CHARACTERS: Final = 1_000
"""Largest number of characters of an answer.

Longer ones would cost much time, and in a response they count as wrong.
"""
_MAX_UNMARKED: Final = 200
"""Largest number of characters of an unmarked reference.

A longer one is a solution, in which the answer cannot be found.
"""
_SHOWN: Final = 80


def answer_of_reference(reference: str) -> str:
    """Return the part of a reference that counts: what is marked in it, else all of it; empty if the mark is."""
    return (marked_answer(reference) or "") if has_mark(reference) else reference.strip()


def unreadable_reference(reference: str) -> str | None:
    """Return why no response can be compared with this reference, as one sentence; None: it can be. Quick, and pure."""
    shown = repr(reference if len(reference) <= _SHOWN else f"...{reference[-_SHOWN:]}")
    answer = answer_of_reference(reference)
    if not re.search(r"\w|\\[A-Za-z]+|[∞∅]", tidied(answer)):
        return f"the reference answer {shown} holds no answer"
    if not is_balanced(answer):
        return f"the reference answer {shown} has braces without a partner"
    if len(answer) > (MAX_CHARACTERS if has_mark(reference) else _MAX_UNMARKED):
        return f"the reference answer {shown} is too long for a final answer; mark that with #### or \\boxed{{}}"
    return None
