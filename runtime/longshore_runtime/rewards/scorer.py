"""Scores responses in a warm process of its own, with a time limit that is enforced from outside.

A response whose scoring is cut off scores 0 and is counted apart. A verifier that dies is a fault, started again and
never a silent zero.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any, Final

import orjson

from longshore.api.reward import RewardFunction
from longshore_runtime.rewards.scoring import RewardError, RewardFault, RewardSetupError, ScoreItem, ScoreResult

_START_TIMEOUT_S: Final = 120.0


class ChildScorer:
    """Implements `ResponseScorer` for kinds Task, Maths and Python: one process, started anew after every cut-off."""

    def __init__(self, function: RewardFunction) -> None:
        """Start the process; raises RewardSetupError for a function that cannot be imported."""
        self._function = function
        self._child: _Child | None = _Child(function)

    def score(self, item: ScoreItem) -> ScoreResult:
        """Reward of a response."""
        request = {"prompt": item.prompt, "response": item.response, "answer": item.answer}
        child = self._child = self._child or _Child(self._function)
        started_s = time.monotonic()
        try:
            reply = child.ask(request, self._function.limit_s)
        except TimeoutError:
            self.close()
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


class _Child:
    def __init__(self, function: RewardFunction) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "longshore_runtime.rewards.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
        self._unread = b""
        options = {"kind": function.kind.value, "import_path": function.import_path}
        try:
            hello = self.ask(options, _START_TIMEOUT_S)
        except (TimeoutError, EOFError) as error:
            self.kill()
            raise RewardSetupError(f"reward {function.name}: the scoring process does not start") from error
        if "error" in hello:
            self.kill()
            raise RewardSetupError(f"reward.functions[{function.name}].{hello['error']}")

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send one line, wait for one line; raises TimeoutError or, when the process has ended, EOFError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(orjson.dumps(request, option=orjson.OPT_APPEND_NEWLINE))
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise EOFError from error
        reply: dict[str, Any] = orjson.loads(self._read_line(time.monotonic() + timeout_s))
        return reply

    def kill(self) -> None:
        """End the process at once, with everything that reward code has started from it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # The request that nobody read any more.

    def _read_line(self, deadline_s: float) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    raise TimeoutError
                chunk = os.read(self._process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise EOFError
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def _environment() -> dict[str, str]:
    """Nothing but what Python needs: no token and no address reaches reward code."""
    kept = ("PATH", "PYTHONPATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ}
