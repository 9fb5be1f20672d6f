"""The command lines of processes that may end at any moment."""

import psutil


def command_of(process: psutil.Process) -> str:
    """Return the words of its command line with spaces between them; empty if the process has ended."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
