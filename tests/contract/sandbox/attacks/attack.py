"""What an attack is: a program that tries to get out of the sandbox, bounded by itself.

A program that comes to its end prints `contained` when nothing that it tried worked, and `ESCAPED` with what worked
otherwise. Names in capitals are those of `world.World`, put in front of the program.
"""

import textwrap
from dataclasses import dataclass
from typing import Final

from longshore_runtime.sandbox.cases import CaseOutcome
from tests.contract.sandbox.world import LIMITS

_PRELUDE: Final = """
import ctypes, os, signal, socket, sys, threading, time
escaped = []

def attempt(name, action):
    try:
        worked = action()
    except Exception:
        return
    if worked is not False:
        escaped.append(name)

def tell():
    print("ESCAPED " + ", ".join(escaped) if escaped else "contained")

def discard(path):  # Where that is refused, the world does it.
    try:
        os.unlink(path)
    except OSError:
        pass

def reads(path):
    return lambda: bool(open(path, "rb").read(1))

libc = ctypes.CDLL(None, use_errno=True)

def call(*arguments):
    return lambda: libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]) >= 0

def fork_without_end(then):  # By every child as well; 64 forks succeed if nobody refuses them.
    left, given = os.pipe()
    os.write(given, b"x" * 64)
    os.close(given)
    may = b""
    while True:
        may = may or os.read(left, 1)
        try:
            child = os.fork() if may else None
        except OSError:
            continue
        may = b""
        if child == 0:
            then()
"""


@dataclass(frozen=True)
class Attack:
    """One variant of one class of attacks."""

    kind: str
    variant: str
    source: str
    contained: frozenset[CaseOutcome] = frozenset({CaseOutcome.PASSED})
    """How it ends where it is contained; `passed` means that it printed `contained`."""

    @property
    def wall_s(self) -> float:
        """Time that it gets: little if it never ends, else far more than it needs."""
        return 0.4 if CaseOutcome.TIMED_OUT in self.contained else LIMITS.wall_s

    def __str__(self) -> str:
        return f"{self.kind}: {self.variant}"

    def program(self, names: dict[str, object]) -> str:
        """The program, with the names of the world."""
        return "\n".join([*(f"{name} = {value!r}" for name, value in names.items()), _PRELUDE, self.source, "tell()"])


def attack(kind: str, variant: str, source: str, *contained: CaseOutcome) -> Attack:
    """`contained`: outcomes that are fine, if not `passed` alone."""
    return Attack(kind, variant, textwrap.dedent(source), frozenset(contained or {CaseOutcome.PASSED}))


LIMITED: Final = (CaseOutcome.PASSED, CaseOutcome.LIMIT, CaseOutcome.ERROR)
"""Outcomes of what wants too much of something: it is refused, and may go on, or is ended."""
