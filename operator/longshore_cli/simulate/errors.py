"""Mistakes in what the user gave."""

from typing import Final

from longshore_cli.errors import CliError

EXIT_BAD_INPUT: Final = 2


class BadInput(CliError):
    """A file or an option that cannot be used; the exit code is 2."""

    exit_code = EXIT_BAD_INPUT


class BadSpec(BadInput):
    """The API server would refuse the RLJob."""
