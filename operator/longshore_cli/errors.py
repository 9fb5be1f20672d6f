"""What went wrong, in one sentence and a fix; expected errors never show a traceback."""

from typing import Final

from longshore_cli.plain import plain

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130


class CliError(Exception):
    """An expected error: what is wrong (one sentence), and what to do about it."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(plain(message))
        self.message = plain(message)
        self.fix = plain(fix)
