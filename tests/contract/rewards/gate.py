"""A reward for tests. Scoring processes import it, so it imports little."""

from pathlib import Path


def gate(prompt: str, response: str, answer: str) -> float:
    """A reward that takes until somebody writes into the pipe that `answer` names, if it names one."""
    return 1.0 if not answer or Path(answer).read_text(encoding="utf-8") else 0.5
