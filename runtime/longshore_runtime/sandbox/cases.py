"""Test cases of a program, and the verdict on what it did: pure, and only ever outside the sandbox.

Of a case, the program sees what `TestCase.shown` returns. What is expected of it stays here, so that nothing a program
can do inside tells it the answer: whatever comes out is a claim, and is compared.
"""

import json
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from longshore_runtime.sandbox import literals
from longshore_runtime.sandbox.assertions import AssertionProgram, read_test_program

MAX_EXPECTED_BYTES: Final = 8 << 20
"""Largest output that one test case may expect: it is compared in the memory of the process that scores."""
MAX_DETAIL: Final = 300
"""Largest number of characters of the reason why a case did not pass."""
_RELATIVE_TOLERANCE: Final = 1e-6
_TOLERANCE_AT_ZERO: Final = 1e-9
"""Tolerance where a float of 0 is expected: what is left when rounded numbers cancel out."""


class CaseOutcome(StrEnum):
    """Outcome of a test case. Passed alone is worth anything."""

    PASSED = "passed"
    FAILED = "failed"
    """The program ended well and its answer is wrong."""
    ERROR = "error"
    """The program raised, ended with another status than 0, was killed, or returned what is not JSON."""
    TIMED_OUT = "timed_out"
    """Wall or CPU time was used up."""
    LIMIT = "limit"
    """Memory, processes or output was used up."""


@dataclass(frozen=True)
class CaseResult:
    """Outcome of one test case."""

    outcome: CaseOutcome
    wall_s: float
    """Seconds from the program's first instruction to its end, without the making of the sandbox."""
    cpu_s: float
    """CPU seconds of the program and of its processes that it waited for, which contention does not stretch."""
    detail: str = ""
    """One line for people about why the case did not pass."""


@dataclass(frozen=True)
class StdioCase:
    """The program reads standard input and prints; trailing spaces and trailing empty lines do not count."""

    stdin: str
    stdout: str

    @property
    def shown(self) -> bytes:
        """Bytes of all that the program gets to see."""
        return self.stdin.encode()

    @cached_property
    def expected_bytes(self) -> int:
        """Size of the right output."""
        return len(self.stdout.encode())

    def difference(self, stdout: bytes, claim: bytes) -> str | None:
        """Return why the answer is wrong; None: it is right."""
        del claim
        try:
            printed = stdout.decode()
        except UnicodeDecodeError:
            return "printed what is not UTF-8"
        return None if _lines(printed) == _lines(self.stdout) else f"printed {printed!r}"


@dataclass(frozen=True)
class FunctionCase:
    """The program defines a function; it is called with JSON arguments, and must return the expected JSON value.

    `true` is not 1. An expected integer is that integer, `1` or `1.0`, and nothing near it. An expected float agrees
    within a relative error of 1e-6, or, if it is 0, within 1e-9. A tuple is a list.
    """

    entry: str
    """Name of the function, or `Class.method` to call on `Class()`."""
    arguments: Sequence[Any]
    expected: Any

    @property
    def shown(self) -> bytes:
        """Bytes of all that the program gets to see."""
        return json.dumps({"entry": self.entry, "arguments": list(self.arguments)}).encode()

    @cached_property
    def expected_bytes(self) -> int:
        """Size of the right value, as JSON."""
        return len(json.dumps(self.expected))

    def difference(self, stdout: bytes, claim: bytes) -> str | None:
        """Return why the answer is wrong; None: it is right. `claim`: what the sandboxed side says was returned."""
        del stdout
        try:
            returned = json.loads(claim)
        except (ValueError, RecursionError):
            return f"returned what is not JSON: {claim[:MAX_DETAIL]!r}" if claim else "returned nothing"
        try:
            return None if _same(returned, self.expected) else f"returned {returned!r}"
        except RecursionError:
            return "returned a value nested too deeply"


@dataclass(frozen=True)
class AssertionCase:
    """The program defines a function; assertions about its values must hold, as Python compares them."""

    entry: str
    test: AssertionProgram

    @property
    def shown(self) -> bytes:
        """Bytes of all that the program gets to see: the calls."""
        return json.dumps({"entry": self.entry, "calls": self.test.shown}).encode()

    @cached_property
    def expected_bytes(self) -> int:
        """Size of what the assertions compare values with, as JSON."""
        return self.test.constant_bytes

    def difference(self, stdout: bytes, claim: bytes) -> str | None:
        """Return why the answer is wrong; None: it is right. `claim`: what the sandboxed side says was returned."""
        del stdout
        try:
            values = literals.loads(claim)
        except (ValueError, RecursionError):
            return f"returned what is no literal: {claim[:MAX_DETAIL]!r}" if claim else "returned nothing"
        if not isinstance(values, list) or len(values) != len(self.test.calls):
            return "returned from some calls only"
        broken = self.test.broken(values)
        return None if broken is None else f"does not hold: {broken}"


TestCase = StdioCase | FunctionCase | AssertionCase


@dataclass(frozen=True)
class Ran:
    """Observations of one run, from outside the sandbox."""

    exit_status: int
    """Exit status as of `os.waitstatus_to_exitcode`: negative for a signal."""
    wall_s: float
    cpu_s: float
    stdout: bytes = b""
    stderr: bytes = b""
    claim: bytes = b""
    timed_out: bool = False
    cpu_exhausted: bool = False
    memory_exhausted: bool = False
    processes_exhausted: bool = False
    output_exhausted: bool = False


def difference(case: TestCase, ran: Ran) -> str | None:
    """Return why the answer of a run is wrong, or None if it is right."""
    return case.difference(ran.stdout, ran.claim)


def verdict(case: TestCase, ran: Ran, compare: Callable[[TestCase, Ran], str | None] = difference) -> CaseResult:
    """Return what one run is worth.

    Args:
        case: the test case.
        ran: what was seen of the run.
        compare: does what `difference` does, and raises TimeoutError if that takes too long.
    """
    outcome, detail = _judge(case, ran, compare)
    return CaseResult(outcome, ran.wall_s, ran.cpu_s, detail[:MAX_DETAIL])


def parse_case(raw: object, row: str) -> TestCase:
    """Return a test case from a data set; `row` names it in messages.

    `{"stdin": text, "stdout": text}`, `{"entry": name, "arguments": [...], "expected": value}`, or
    `{"entry": name, "test": text}` with assertions in Python.

    Raises:
        ValueError: it is none of these, or expects too large an output; names row and field.
    """
    case = _case(raw, row)
    if case.expected_bytes > MAX_EXPECTED_BYTES:
        field = {StdioCase: "stdout", FunctionCase: "expected", AssertionCase: "test"}[type(case)]
        raise ValueError(
            f"{row}: {field}: must expect an output of {MAX_EXPECTED_BYTES:,} bytes or less, "
            f"not {case.expected_bytes:,}; remove the test case"
        )
    return case


def _case(raw: object, row: str) -> TestCase:
    if not isinstance(raw, Mapping):
        raise ValueError(f"{row}: a test case must be an object, not {type(raw).__name__}")
    for fields in (("stdin", "stdout"), ("entry", "arguments", "expected"), ("entry", "test")):
        if set(raw) == set(fields):
            break
    else:
        raise ValueError(
            f"{row}: a test case has the fields stdin and stdout, or entry, arguments and expected, or entry and test, "
            f"not {sorted(raw)}"
        )
    if "stdin" in raw:
        return StdioCase(_text(raw, "stdin", row), _text(raw, "stdout", row))
    entry = _text(raw, "entry", row)
    if not 1 <= len(parts := entry.split(".")) <= 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{row}: entry: must be the name of a function, or Class.method, not {entry!r}")
    if "test" in raw:
        try:
            return AssertionCase(entry, read_test_program(_text(raw, "test", row), entry))
        except ValueError as error:
            raise ValueError(str(error) if str(error).startswith(row) else f"{row}: test: {error}") from error
    if not isinstance(raw["arguments"], list):
        raise ValueError(f"{row}: arguments: must be a list, not {type(raw['arguments']).__name__}")
    for field in ("arguments", "expected"):
        try:
            json.dumps(raw[field])
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{row}: {field}: must be JSON ({error})") from error
    return FunctionCase(entry, raw["arguments"], raw["expected"])


def _text(raw: Mapping[str, Any], field: str, row: str) -> str:
    value = raw[field]
    if not isinstance(value, str):
        raise ValueError(f"{row}: {field}: must be a string, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{row}: {field}: must be encodable as UTF-8 ({error.reason})") from error
    return value


def _judge(case: TestCase, ran: Ran, compare: Callable[[TestCase, Ran], str | None]) -> tuple[CaseOutcome, str]:
    if ran.output_exhausted:
        return CaseOutcome.LIMIT, "printed or returned too many bytes"
    if ran.timed_out:
        return CaseOutcome.TIMED_OUT, f"ran for {ran.wall_s:.3g} s"
    if ran.cpu_exhausted:
        return CaseOutcome.TIMED_OUT, f"used {ran.cpu_s:.3g} s of CPU time"
    if ran.memory_exhausted:
        return CaseOutcome.LIMIT, "used too much memory"
    if ran.processes_exhausted:
        return CaseOutcome.LIMIT, "started too many processes or threads"
    if ran.exit_status != 0:
        error = _last_line(ran.stderr)
        # What a program says of itself changes how it failed, never that it did.
        return (CaseOutcome.LIMIT if error.startswith("MemoryError") else CaseOutcome.ERROR), error or _ended(
            ran.exit_status
        )
    try:
        wrong = compare(case, ran)
    except TimeoutError as error:
        return CaseOutcome.TIMED_OUT, str(error)
    return (CaseOutcome.PASSED, "") if wrong is None else (CaseOutcome.FAILED, wrong)


def _ended(exit_status: int) -> str:
    if exit_status > 0:
        return f"ended with status {exit_status}"
    try:
        return f"was ended by {signal.Signals(-exit_status).name}"
    except ValueError:
        return f"was ended by signal {-exit_status}"


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").rstrip().splitlines()
    return lines[-1].strip() if lines else ""


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, bool) or isinstance(expected, bool) or value is None or expected is None:
        return value is expected
    if isinstance(expected, float):
        return isinstance(value, int | float) and _close(value, expected)
    if isinstance(expected, int):
        return isinstance(value, int | float) and value == expected
    if isinstance(value, list):
        return (
            isinstance(expected, list | tuple)
            and len(value) == len(expected)
            and all(_same(mine, theirs) for mine, theirs in zip(value, expected, strict=True))
        )
    if isinstance(value, dict):
        return (
            isinstance(expected, Mapping)
            and value.keys() == expected.keys()
            and all(_same(mine, expected[key]) for key, mine in value.items())
        )
    return type(value) is type(expected) and bool(value == expected)


def _close(value: float, expected: float) -> bool:
    try:
        if math.isnan(value) or math.isnan(expected):
            return math.isnan(value) and math.isnan(expected)
        if expected == 0.0:
            return abs(value) <= _TOLERANCE_AT_ZERO
        return math.isclose(value, expected, rel_tol=_RELATIVE_TOLERANCE)
    except OverflowError:
        return False  # An integer that no float comes near to.
