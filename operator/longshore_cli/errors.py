"""Expected errors of the command line; they never show a traceback."""

from typing import Final

from longshore_client.errors import ClientError

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130


class CliError(ClientError):
    """An expected error, and the exit code that it ends the program with."""

    exit_code = EXIT_FAILED
