"""Mistakes in what the user gave."""

from collections.abc import Sequence
from typing import Final

from longshore_cli.errors import CliError

EXIT_BAD_INPUT: Final = 2


class BadInput(CliError):
    """A file or an option that cannot be used; the exit code is 2."""

    exit_code = EXIT_BAD_INPUT


class BadSpec(BadInput):
    """The API server would refuse the RLJob."""

    def __init__(self, message: str, mistakes: Sequence[str]) -> None:
        """Report the first of the mistakes in `message`."""
        super().__init__(message)
        self.mistakes = tuple(mistakes)
