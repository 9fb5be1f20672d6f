"""Tools that environments of kind Python may name besides those of users: `longshore_runtime.tools:python`.

The template of an environment imports this module, which starts the zygote of a sandbox. All episodes fork their
interpreters from it, so each interpreter takes only the memory that it changes. It starts with the first call of its
episode. An episode has a process of its own, so what this module keeps belongs to one episode.
"""

from typing import Final

from longshore.api.environment import INTERPRETER_MEMORY_BYTES
from longshore_runtime.sandbox.interpreter import Interpreter, InterpreterLost
from longshore_runtime.sandbox.layers import Layer, SandboxLimits
from longshore_runtime.sandbox.sandbox import Sandbox, SandboxError

_REQUIRED: Final = (Layer.SECCOMP, Layer.LANDLOCK, Layer.RLIMITS)
_CALL_SHARE: Final = 0.8
"""Share of `callTimeoutSeconds` that one call may take: after all of it, the episode would fail."""
_DAY_S: Final = 86_400.0
"""CPU time of an interpreter, in seconds: its calls are limited by their wall time, and stopped in between."""

_sandbox: Final = Sandbox(limits=SandboxLimits(cpu_s=_DAY_S, memory_bytes=INTERPRETER_MEMORY_BYTES), is_shared=True)
_sandbox.require(_REQUIRED)
_interpreter: Interpreter | None = None
_call_limit_s = 8.0


def limit_calls(timeout_s: float) -> None:
    """Set the limit after which an episode fails whose call has not ended; interpreters end before."""
    global _call_limit_s
    _call_limit_s = _CALL_SHARE * timeout_s


def python(code: str) -> str:
    """Execute Python code. Variables and imports are there in later calls.

    Args:
        code: Code to execute. The answer is what it prints, and the value of its last expression.
    """
    global _interpreter
    try:
        _interpreter = _interpreter or _sandbox.start_interpreter()
        result = _interpreter.call(code, _call_limit_s)
    except (SandboxError, InterpreterLost) as error:
        raise SystemExit(str(error)) from error  # An exception would be taken for an answer to the model.
    if result.end is None:
        return result.text
    _interpreter = None
    lost = f"[The interpreter has ended: {result.end}. Its variables and imports are lost.]"
    return f"{result.text}\n{lost}" if result.text else lost
