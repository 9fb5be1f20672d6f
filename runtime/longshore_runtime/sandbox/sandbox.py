"""Runs model-written Python programs against test cases."""

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Self, TypeVar

from longshore_runtime.sandbox.cases import (
    AssertionCase,
    CaseOutcome,
    CaseResult,
    Ran,
    StdioCase,
    TestCase,
    verdict,
)
from longshore_runtime.sandbox.confinement import Confinement
from longshore_runtime.sandbox.detection import detect
from longshore_runtime.sandbox.interpreter import Interpreter
from longshore_runtime.sandbox.layers import Layer, LayerReport, LayerUnavailable, SandboxLimits
from longshore_runtime.sandbox.worker import SandboxWorker, ZygoteDied, default_python

_MAX_TRIES: Final = 3
_SMALL_CLAIM_BYTES: Final = 16 << 10
"""Values up to this size are judged in this process, because nothing in them takes long to compare: 800 integers that
have one hash fit into it."""
_USERS: Final = range(1 << 30, 1 << 31)
_FEW_USERS: Final = range(20_000, 60_000)
_Result = TypeVar("_Result")


class SandboxError(Exception):
    """Raised when a program could not be judged, never a reason for a reward of zero; the message is one sentence."""


class ProgramBreaksSandbox(SandboxError):
    """Raised when this program, and no other, breaks the sandbox; the message is one sentence."""


class LayersMissing(SandboxError):
    """Raised when the required layers are not available."""


class Sandbox:
    """One warm interpreter that runs one program at a time; use one per process that scores. Not thread-safe."""

    def __init__(
        self,
        layers: Collection[Layer] | None = None,
        limits: SandboxLimits | None = None,
        *,
        import_paths: Sequence[str] = (),
        python: str | None = None,
        is_shared: bool = False,
    ) -> None:
        """Use these `layers` of protection; None: all that are available on this machine.

        `import_paths`: directories with packages that programs may import, beyond the standard library. `python`:
        interpreter for programs; None: the one that runs this.
        `is_shared`: several interpreters run at a time, without Cgroup, which would count the memory of all together.
        """
        self._python = python or default_python()
        self._confinement = Confinement(
            layers=(detect(self._python).available if layers is None else frozenset(layers))
            - ({Layer.CGROUP} if is_shared else set()),
            limits=limits or SandboxLimits(),
            user=_own_user(),
            import_paths=[_import_path(path) for path in import_paths],
            is_shared=is_shared,
        )
        self._worker: SandboxWorker | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def layers(self) -> frozenset[Layer]:
        """The protections in use."""
        return self._confinement.layers

    @property
    def report(self) -> LayerReport:
        """Protections of this machine, and why the others are missing."""
        return detect(self._python)

    def require(self, layers: Collection[Layer]) -> None:
        """Raise LayersMissing, naming those that lack, unless all of `layers` are in use and work here, together.

        Raises:
            LayersMissing: see above.
            SandboxError: that cannot be found out.
        """
        unused = [layer for layer in Layer if layer in layers and layer not in self.layers]
        missing = detect(self._python).missing(layers)
        if missing or unused:
            raise LayersMissing(missing or f"the sandbox does not use {', '.join(unused)}")
        limit_s = self._confinement.limits.wall_s
        self._retried(lambda: self._try_source(b"pass", StdioCase("", ""), limit_s))

    def run(
        self,
        program: str,
        cases: Sequence[TestCase],
        *,
        timeouts_s: Sequence[float] | None = None,
        stop_at: Collection[CaseOutcome] = (),
    ) -> list[CaseResult]:
        """Run the program once per case, each time in a fresh fork; results in the order of the cases.

        `timeouts_s`: wall time of each case, at most `limits.wall_s`; None: that. A result in `stop_at` is the
        last.

        Raises:
            ProgramBreaksSandbox: the program is to blame that a case cannot be judged.
            SandboxError: a case cannot be judged for another reason.
        """
        limit_s = self._confinement.limits.wall_s
        results: list[CaseResult] = []
        for case, timeout_s in zip(cases, [limit_s] * len(cases) if timeouts_s is None else timeouts_s, strict=True):
            results.append(self._run_case(program, case, min(timeout_s, limit_s)))
            if results[-1].outcome in stop_at:
                break
        return results

    def start_interpreter(self) -> Interpreter:
        """Start a program that keeps its state between calls, beside others; forks of this process may do so, too.

        Raises:
            SandboxError: it cannot be started.
        """
        assert self._confinement.is_shared, "programs of one user would share its limits"
        try:
            if self._worker is not None:
                with contextlib.suppress(ZygoteDied):
                    return Interpreter(self._worker, self._confinement.limits)
            self._worker = SandboxWorker(
                self._confinement, self._python
            )  # Of a fork alone, if the one of all has died.
            return Interpreter(self._worker, self._confinement.limits)
        except (LayerUnavailable, ZygoteDied) as error:
            raise SandboxError(f"the sandbox cannot be made: {error}") from error

    def close(self) -> None:
        """End the interpreter."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _run_case(self, program: str, case: TestCase, wall_s: float) -> CaseResult:
        try:
            source = program.encode()
        except UnicodeEncodeError as error:
            return CaseResult(CaseOutcome.ERROR, 0.0, 0.0, f"the program is not encodable as UTF-8 ({error.reason})")
        return self._retried(lambda: self._judged(self._try_source(source, case, wall_s), case, wall_s))

    def _judged(self, ran: Ran, case: TestCase, wall_s: float) -> CaseResult:
        """Return what a run is worth, with the time that its value took to judge; raises ZygoteDied."""
        if not isinstance(case, AssertionCase) or len(ran.claim) <= _SMALL_CLAIM_BYTES:
            return verdict(case, ran)
        worker, started_s = self._worker, time.monotonic()
        assert worker is not None, "it has just run the program"
        result = verdict(case, ran, lambda _, ran: worker.judge(case, ran.claim, wall_s))
        return replace(result, wall_s=result.wall_s + time.monotonic() - started_s)

    def _retried(self, attempt: Callable[[], _Result]) -> _Result:
        """Return the result of what may raise ZygoteDied, with a new interpreter after each time that it does."""
        for _ in range(_MAX_TRIES):
            try:
                return attempt()
            except ZygoteDied:
                self.close()
        broken = f"the sandbox died {_MAX_TRIES} times on one program"
        try:
            self._try_source(b"pass", StdioCase("", ""), self._confinement.limits.wall_s)
        except ZygoteDied as error:
            self.close()
            raise SandboxError(f"{broken}, and on one that does nothing") from error
        raise ProgramBreaksSandbox(f"{broken}, and on no other")

    def _try_source(self, source: bytes, case: TestCase, wall_s: float) -> Ran:
        """Run a program on one case, with a new worker if there is none; raises ZygoteDied or LayersMissing."""
        try:
            self._worker = self._worker or SandboxWorker(self._confinement, self._python)
            is_function = not isinstance(case, StdioCase)
            return self._worker.run(source, case.shown, is_function, wall_s, case.expected_bytes)
        except LayerUnavailable as error:
            self.close()
            raise LayersMissing(f"the sandbox cannot be made: {error}") from error


def _import_path(path: str) -> str:
    real = os.path.realpath(path)
    if Path(real).is_relative_to("/tmp"):
        raise ValueError(f"import_paths: {path!r} lies in /tmp, which is private to each program; move it")
    return real


def _own_user() -> int:
    """Return a user that no other process has, as far as the pod knows enough of them."""
    covered = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    highest = max((int(first) + int(count) - 1 for first, _, count in covered), default=0)
    users = _USERS if highest >= _USERS[-1] else _FEW_USERS
    return secrets.choice(users)  # Pods on one node have the same process numbers, and often the same users.
