"""Programs against the test cases of their row (RollPacker, section 4.3), in a sandbox, each with its own limit."""

import json
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from longshore.api.quantity import parse_bytes
from longshore.api.reward import RewardFunction
from longshore.checks.rows import value_at
from longshore.policy.adaptive_timeout import MAX_CONTENTION, CaseRun
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.kinds.kind import Kind, WorkerSide
from longshore_runtime.rewards.scoring import (
    ResponseScorer,
    RewardFault,
    RewardSetupError,
    ScoreItem,
    ScoreResult,
    WorkerBroken,
)
from longshore_runtime.rewards.thinking import after_thinking, is_thinking
from longshore_runtime.sandbox.cases import CaseOutcome, CaseResult, TestCase, parse_case
from longshore_runtime.sandbox.layers import Layer, LayerReport, SandboxLimits
from longshore_runtime.sandbox.sandbox import LayersMissing, ProgramBreaksSandbox, Sandbox, SandboxError

_NOT_PASSED: Final = frozenset(CaseOutcome) - {CaseOutcome.PASSED}
_OPENING: Final = re.compile(
    r"(?P<margin>[ \t]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)?+)"  # Of an item of a list, up to its text.
    r"(?:[^`]++(?=`{3,}\w*\s*$))?+"  # Prose, if no more than one word follows the fence.
    r"(?P<fence>`{3,}+)(?P<info>[^`]*+)"
)
"""Pattern of a line that opens a block."""
_LANGUAGES: Final = frozenset({"py", "py3", "python", "python3"})
_INLINE: Final = re.compile(r"(`{1,3})[^`]+\1")
"""Pattern of code within a line."""
_BETWEEN_FENCES: Final = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)


class CodeKind(Kind):
    """Runs the program of a response with the test cases of its row."""

    compares_with_rows = True

    def scorer(self, function: RewardFunction, side: WorkerSide) -> "CodeScorer":
        """Start a sandbox."""
        return CodeScorer(function)

    def read_row(
        self, function: RewardFunction, fields: Mapping[str, Any], reference: object, source: str
    ) -> Mapping[str, Any]:
        """Return its test cases as a list."""
        field = function.code.tests_field
        try:
            cases_of(fields, field, source)
            return {field: case_list(fields, field, source)}
        except ValueError as error:
            raise UserError(str(error)) from error


def cases_of(row: Mapping[str, Any], field: str, source: str) -> list[TestCase]:
    """Return the test cases of a row; raises ValueError that names row and field."""
    cases = case_list(row, field, source)
    return [parse_case(case, f"{source}, {field}[{number}]") for number, case in enumerate(cases)]


def case_list(row: Mapping[str, Any], field: str, source: str) -> list[Any]:
    """Return test cases that `sandbox.cases` can parse; raises ValueError that names row and field.

    They are such a list, or an object `{inputs, outputs}` as in APPS, TACO and Eurus, with `fn_name` for calls of a
    function; or either of them as JSON in a text.
    """
    raw = value_at(row, field)
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except (ValueError, RecursionError):
            raw = None
    if isinstance(raw, Mapping) and {"inputs", "outputs"} <= raw.keys():
        raw = _paired(raw, f"{source}, {field}")
    if raw == []:
        raise ValueError(f"{source}: {field!r} has no test case; add one, or remove the row")
    if not isinstance(raw, list):
        raise ValueError(f"{source}: {field!r} must be a list of test cases; set code.testsField to where they are")
    return raw


def program_of(response: str) -> str:
    """Return the last fenced block of what follows the thinking, else of the response; else all that follows it."""
    answer = after_thinking(response)
    blocks = _blocks(answer) or _blocks(response)
    return _without_margin(blocks[-1]) if blocks else answer


class CodeScorer(ResponseScorer):
    """Runs programs in a sandbox of its own."""

    def __init__(self, function: RewardFunction) -> None:
        """Make the sandbox; raises RewardSetupError where a layer that the job asks for does not work.

        Raises:
            RewardFault: the sandbox fails before that is known.
        """
        self._function = function
        code = function.code
        limits = SandboxLimits(
            wall_s=code.max_timeout_s * MAX_CONTENTION,
            cpu_s=code.max_timeout_s,
            memory_bytes=parse_bytes(code.memory),
            num_processes=code.max_processes,
        )
        self._sandbox = Sandbox(limits=limits)
        try:
            self._sandbox.require([Layer(layer.value) for layer in code.required_layers])
        except LayersMissing as error:
            raise RewardSetupError(f"reward.functions[{function.name}].code.requiredLayers: {error}") from error
        except SandboxError as error:
            raise RewardFault(f"reward {function.name}: {error}") from error

    def score(self, item: ScoreItem) -> ScoreResult:
        """Return 1 if all cases pass; otherwise 0 or, with partial credit and no case cut off, the share that passes.

        A program on which the sandbox breaks again and again, while it runs another, scores 0 and counts as broken.

        Raises:
            WorkerBroken: the sandbox fails on every program.
        """
        code = self._function.code
        if item.is_cut and is_thinking(item.prompt, item.response):
            return ScoreResult(0.0, 0.0)  # Programs that it has thought of are not its answer.
        cases = cases_of(item.row, code.tests_field, item.sample)
        limits_s = item.limits_s or [code.max_timeout_s] * len(cases)
        stop_at = {CaseOutcome.TIMED_OUT} if code.partial_credit else _NOT_PASSED
        started_s = time.monotonic()
        try:
            results = self._sandbox.run(program_of(item.response), cases, timeouts_s=limits_s, stop_at=stop_at)
        except ProgramBreaksSandbox as error:
            return ScoreResult(0.0, time.monotonic() - started_s, broken=f"{item.sample} broke the sandbox: {error}")
        except SandboxError as error:
            # Failing is quick: a worker that stayed would soon be idle, and be given what others could score.
            raise WorkerBroken(f"reward {self._function.name}: {item.sample}: {error}") from error
        num_passed = sum(result.outcome is CaseOutcome.PASSED for result in results)
        passed_all = num_passed == len(cases)
        timed_out = any(result.outcome is CaseOutcome.TIMED_OUT for result in results)
        gets_a_share = code.partial_credit and not timed_out
        return ScoreResult(
            reward=num_passed / len(cases) if gets_a_share else float(passed_all),
            seconds=sum(result.wall_s for result in results),
            timed_out=timed_out,
            runs=tuple(_run(number, result) for number, result in enumerate(results)),
            passed_all=passed_all,
        )

    @property
    def layers(self) -> frozenset[Layer]:
        """The protections in use."""
        return self._sandbox.layers

    @property
    def report(self) -> LayerReport:
        """Protections of this machine, and the reasons why others are missing."""
        return self._sandbox.report

    def close(self) -> None:
        """End the interpreter."""
        self._sandbox.close()


def _run(number: int, result: CaseResult) -> CaseRun:
    return CaseRun(number, result.wall_s, result.cpu_s, timed_out=result.outcome is CaseOutcome.TIMED_OUT)


def _blocks(response: str) -> list[str]:
    """Return the fenced blocks of a response.

    A block ends at a fence that is indented no more than its opening. One without such an end lasts to the next fence
    wherever that is, and is none if there is no fence.
    """
    lines = response.split("\n")
    blocks: list[str] = []
    opening: re.Match[str] | None = None
    start = 0
    for number, line in enumerate(lines):
        fence = _OPENING.fullmatch(_INLINE.sub(".", line))
        is_level = opening is not None and _is_level(line, opening)
        if is_level and not _names_a_language(fence):
            blocks.append("".join(f"{one}\n" for one in lines[start + 1 : number]))
            opening = None
        elif fence is not None and (opening is None or is_level):
            opening, start = fence, number
    if opening is not None:
        blocks += _BETWEEN_FENCES.findall("\n".join(lines[start:]))
    return blocks or _BETWEEN_FENCES.findall(response)


def _is_level(line: str, opening: re.Match[str]) -> bool:
    """Return whether a line begins with a fence as that of a block, indented no more."""
    content = line.lstrip(" \t")
    return content.startswith(opening["fence"]) and len(line) - len(content) <= len(opening["margin"])


def _names_a_language(fence: re.Match[str] | None) -> bool:
    """Return whether a fence cannot be the end of a block."""
    return fence is not None and fence["info"].strip().lower() in _LANGUAGES


def _without_margin(block: str) -> str:
    """Remove the indentation that all lines have in common."""
    lines = block.split("\n")
    margins = [line[: len(line) - len(line.lstrip(" \t"))] for line in lines if line.strip()]
    margin = min(margins, key=len, default="")
    return "\n".join(line.removeprefix(margin) for line in lines)


def _paired(raw: Mapping[str, Any], source: str) -> list[Any]:
    inputs, outputs, entry = raw["inputs"], raw["outputs"], raw.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError(f"{source}: inputs and outputs must be lists of the same length")
    if entry is None:
        pairs = zip(inputs, outputs, strict=True)
        return [{"stdin": _text(given), "stdout": _text(expected)} for given, expected in pairs]
    if all(isinstance(one, list) and len(one) == 1 for one in outputs):
        outputs = [one[0] for one in outputs]  # The value is wrapped.
    pairs = zip(inputs, outputs, strict=True)
    return [{"entry": entry, "arguments": given, "expected": expected} for given, expected in pairs]


def _text(value: Any) -> Any:
    """Join the lines of a value that is a list of them."""
    is_lines = isinstance(value, list) and all(isinstance(line, str) for line in value)
    return "\n".join(value) if is_lines else value
