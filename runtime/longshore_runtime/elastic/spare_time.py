"""A search of strategy Auto in a process of its own, at the lowest CPU priority.

The process imports this module before it has its low priority, and all that the search needs afterwards.
"""

import contextlib
import multiprocessing
import os
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from longshore.sim.auto import Question
    from longshore.sim.search import SearchResult

_NICENESS: Final = 19


class SearchFailed(Exception):
    """Raised when a search has ended without a result; the message is one sentence."""


class SpareTimeSearch:
    """Search in a process that ends with the coordinator. Nobody waits for it, not even to read its question."""

    def __init__(self, question: "Question") -> None:
        context = multiprocessing.get_context("spawn")
        questions, self._questions = context.Pipe(duplex=False)
        self._answers, answers = context.Pipe(duplex=False)
        self._process = context.Process(target=_answer, args=(questions, answers), name="search", daemon=True)
        self._process.start()
        for end in (questions, answers):  # The process has the others: when it ends, so do both pipes.
            end.close()
        # A pipe holds 64 KiB, and a question may have more: the process would have to start first.
        self._asking = threading.Thread(target=self._ask, args=(question,), name="search", daemon=True)
        self._asking.start()

    def done(self) -> bool:
        """Return whether the search has ended."""
        return self._answers.poll()

    def result(self) -> "SearchResult":
        """Return the result of a search that has ended; raises SearchFailed."""
        try:
            found: SearchResult = self._answers.recv()
        except EOFError as error:
            self._process.join()
            raise SearchFailed(f"its process ended with exit code {self._process.exitcode}") from error
        finally:
            self._answers.close()
        self._process.join()
        return found

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()
        self._asking.join()
        self._answers.close()

    def _ask(self, question: "Question") -> None:
        # `result` says how the process has ended, if it has.
        with self._questions, contextlib.suppress(BrokenPipeError):
            self._questions.send(question)


def _answer(questions: "Connection[None, Question]", answers: "Connection[SearchResult, None]") -> None:
    os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    answers.send(questions.recv().answer())
