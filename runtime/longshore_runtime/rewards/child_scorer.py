"""Score responses in a separate warm process, with a time limit that is enforced from outside.

A response whose scoring is cut off scores 0 and is counted apart. A verifier that dies is a fault, started again and
never a silent zero.
"""

import math
import os
import selectors
import time
from collections.abc import Sequence
from typing import Any, Final

import orjson

from longshore.api import contract
from longshore.api.reward import OnRewardError, RewardFunction, Signature
from longshore_runtime.rewards.child_process import start_child
from longshore_runtime.rewards.company import BESIDE, COMPANY
from longshore_runtime.rewards.row_json import to_json
from longshore_runtime.rewards.scoring import (
    ResponseScorer,
    RewardError,
    RewardFault,
    RewardSetupError,
    ScoreItem,
    ScoreResult,
    wants_row,
    with_sample,
)

_START_TIMEOUT_S: Final = 120.0
_WARM_UP_TIMEOUT_S: Final = 30.0
"""Limit of the first call where `timeoutSeconds` is unset: it may load what the function needs."""

_COMPANY_TOLERANCE: Final = 0.01
"""Difference of rewards, absolute or relative, that a model leaves which computes several responses at once."""
_STALL_S: Final = 1.0
"""Seconds of delay in noticing a limit that mean that the pod was suspended, or had no processor.

The program is not to blame for such a delay.
"""


class ChildScorer(ResponseScorer):
    """Scorer of kinds Task, Maths and Python: one process, restarted after every cut-off.

    A function of the user that hangs, or is slow at its first call, would score 0 for ever. So the process of kind
    Python scores a row before it is used, and again after each restart.
    """

    def __init__(self, function: RewardFunction, rehearsal: Sequence[ScoreItem] = ()) -> None:
        """Start the process and score the `rehearsal`; raises RewardSetupError for a function that cannot score it."""
        self._function = function
        self._rehearsal = rehearsal if function.import_path is not None else ()
        try:
            self._child: _ScorerProcess | None = self._started()
        except _FirstCallTooSlow as fault:
            raise self._setup_error("timeoutSeconds", str(fault)) from fault
        except RewardFault as fault:
            raise self._setup_error("importPath", str(fault)) from fault
        self.is_rehearsed = bool(self._rehearsal) and not self._child.takes_state
        """Whether the function has scored the rehearsal: one that takes the state of an episode could not."""
        if self.is_rehearsed:
            self._rehearse()

    def score(self, item: ScoreItem) -> ScoreResult:
        """Return the reward of a response, which gets a second chance if the pod stood still."""
        try:
            return self._scored(item)
        except _Stalled:
            return self._scored(item, is_again=True)

    def _scored(self, item: ScoreItem, *, is_again: bool = False) -> ScoreResult:
        child = self._child = self._child or self._started()
        started_s = time.monotonic()
        try:
            reply = child.ask(_request(item, self._function), self._function.limit_s)
        except TimeoutError as error:
            self.close()
            # A response may make the pod stand still each time. It must not end the job.
            if isinstance(error, _Stalled) and not is_again:
                raise
            return ScoreResult(0.0, time.monotonic() - started_s, timed_out=True)
        except EOFError as error:
            self.close()
            raise RewardFault(f"reward {self._function.name}: {item.sample}: the scoring process died") from error
        if "error" in reply:
            raise RewardError(f"reward {self._function.name}: {item.sample}: {reply['error']}")
        return ScoreResult(reply["reward"], time.monotonic() - started_s)

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _started(self) -> "_ScorerProcess":
        """Return a process that has answered once, if there is something to ask; what it answers does not matter.

        A pod that stood still meanwhile gives it a second chance.
        """
        try:
            return self._warmed_up()
        except _FirstCallTooSlow as error:
            if isinstance(error.__cause__, _Stalled):
                return self._warmed_up()
            raise

    def _warmed_up(self) -> "_ScorerProcess":
        child = _ScorerProcess(self._function)
        if not self._rehearsal or child.takes_state:
            return child
        item, limit_s = self._rehearsal[0], self._function.timeout_s or _WARM_UP_TIMEOUT_S
        who = f"reward {self._function.name}: {item.sample}: {self._function.import_path}"
        try:
            child.ask(_request(item, self._function), limit_s)
        except TimeoutError as error:
            child.kill()
            raise _FirstCallTooSlow(
                f"{who} does not return within {limit_s:g} s at its first call; load what it needs when its module is "
                "imported, or raise timeoutSeconds"
            ) from error
        except EOFError as error:
            child.kill()
            raise RewardFault(f"{who} ends its process") from error
        return child

    def _rehearse(self) -> None:
        """Find out what fails for every row, also with the right answer. Raises RewardSetupError."""
        errors = []
        num_late = 0
        for item in self._rehearsal:
            try:
                num_late += self.score(item).timed_out
            except (RewardError, RewardFault) as error:
                errors.append(with_sample(str(error), item))
        num_rows = len(self._rehearsal)
        if num_late == num_rows:
            self._refuse(
                "timeoutSeconds",
                f"all {num_rows} rows that were tried took longer than {self._function.limit_s:g} s, and would score "
                "0; raise it, or make the function faster",
            )
        if len(errors) == num_rows and self._function.on_error is OnRewardError.FAIL:
            self._refuse("importPath", f"it scores none of the {num_rows} rows that were tried: {errors[0]}")

        if self._function.signature is Signature.TRL:
            for beside in COMPANY:
                self._refuse_comparison(self._rehearsal[0], beside)

    def _refuse_comparison(self, item: ScoreItem, beside: str) -> None:
        """Raise RewardSetupError for a function that gives a response another reward because of a second one.

        It does so only if it gives the same rewards again: it may also be random, or remember what it has seen.
        """
        alone, together = self._in_rehearsal(item), self._in_rehearsal(item, beside)
        if alone is None or together is None or _are_close(alone, together):
            return
        again = self._in_rehearsal(item), self._in_rehearsal(item, beside)
        if again == (alone, together):
            self._refuse(
                "importPath",
                f"{self._function.import_path!r} compares responses with each other: {item.sample} gets {alone:g} "
                f"alone, and {together:g} beside {beside}; Longshore scores every response alone, so use a function "
                "whose rewards do not depend on other responses",
            )

    def _in_rehearsal(self, item: ScoreItem, beside: str | None = None) -> float | None:
        """Return the reward of a response, alone or beside another one, or None if it has none in time."""
        request = _request(item, self._function) | ({} if beside is None else {BESIDE: beside})
        try:
            child = self._child = self._child or self._started()
            reward: float | None = child.ask(request, self._function.limit_s).get("reward")
        except (RewardFault, TimeoutError, EOFError):
            self.close()
            return None
        return reward

    def _refuse(self, field: str, why: str) -> None:
        self.close()
        raise self._setup_error(field, why)

    def _setup_error(self, field: str, why: str) -> RewardSetupError:
        return RewardSetupError(f"reward.functions[{self._function.name}].{field}: {why}")


def _are_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_COMPANY_TOLERANCE, abs_tol=_COMPANY_TOLERANCE)


def _request(item: ScoreItem, function: RewardFunction) -> dict[str, Any]:
    sample: dict[str, Any] = {
        "prompt": item.prompt,
        "response": item.response,
        "answer": item.answer,
        "is_cut": item.is_cut,
        "state": item.state,
    }
    if wants_row(function):
        sample |= {"row": item.row, "reference": item.reference, "messages": list(item.messages)}
        sample["turns"] = list(item.turns)
    return sample


class _FirstCallTooSlow(RewardFault):
    """Raised when the first call of a function has exceeded its limit."""


class _Stalled(TimeoutError):
    """Raised when a limit was noticed so late that the process may have had no time either."""


def _wait(selector: selectors.BaseSelector, deadline_s: float) -> None:
    """Wait until a pipe is ready; raises TimeoutError at the deadline."""
    if selector.select(max(0.0, deadline_s - time.monotonic())):
        return
    raise _Stalled if time.monotonic() - deadline_s > _STALL_S else TimeoutError


class _ScorerProcess:
    def __init__(self, function: RewardFunction) -> None:
        self._child = start_child(function.kind)
        os.set_blocking(self._child.requests, False)
        self._unread = b""
        self._number = 0
        """Number of the last request."""
        options = {
            "kind": function.kind.value,
            "import_path": function.import_path,
            "signature": function.signature.value,
            "modules": os.environ.get(contract.ENV_MODULES),
        }
        try:
            hello = self.ask(options, _START_TIMEOUT_S)
        except TimeoutError as error:
            self.kill()
            what = (
                f"importPath: {function.import_path!r} is not imported"
                if function.import_path
                else "it has not started"
            )
            raise RewardSetupError(f"reward.functions[{function.name}].{what} within {_START_TIMEOUT_S:g} s") from error
        except EOFError as error:
            self.kill()
            raise RewardSetupError(f"reward {function.name}: the scoring process does not start") from error
        if "error" in hello:
            self.kill()
            raise RewardSetupError(f"reward.functions[{function.name}].{hello['error']}")
        self.takes_state = bool(hello.get("takes_state"))
        """Whether the function asks for the final state of an environment."""

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and wait for the reply to it; another reply, such as a late one, is dropped.

        Raises:
            TimeoutError: there is no reply in time.
            EOFError: the process has ended, or what it writes cannot be read.
        """
        deadline_s = time.monotonic() + timeout_s
        self._number += 1
        self._write(to_json({"number": self._number, **request}) + b"\n", deadline_s)
        while True:
            try:
                reply: dict[str, Any] = orjson.loads(self._read_line(deadline_s))
            except orjson.JSONDecodeError as error:
                raise EOFError from error
            if reply["number"] == self._number:
                return reply

    def kill(self) -> None:
        """End the process at once, with everything that reward code has started from it."""
        self._child.kill()

    def _write(self, line: bytes, deadline_s: float) -> None:
        """Write as the process reads: a pipe holds less than a long response, and a process may hang."""
        unwritten, pipe = memoryview(line), self._child.requests
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_WRITE)
            while unwritten:
                _wait(selector, deadline_s)
                try:
                    unwritten = unwritten[os.write(pipe, unwritten) :]
                except BrokenPipeError as error:
                    raise EOFError from error

    def _read_line(self, deadline_s: float) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.replies, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                _wait(selector, deadline_s)
                chunk = os.read(self._child.replies, 1 << 16)
                if not chunk:
                    raise EOFError
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line
