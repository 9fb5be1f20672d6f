"""The scoring process: reads samples as JSON lines, answers each with its reward. Started by `scorer`.

It ends with the worker that started it, also in the middle of a sample: nobody would be left to cut it off.
"""

import json
import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from longshore.api.reward_kind import RewardKind, Signature
from longshore_runtime.rewards.company import with_company
from longshore_runtime.rewards.functions import reward_function
from longshore_runtime.rewards.numbers import finite_reward
from longshore_runtime.rewards.signatures import Sample, WrongReward, caller

_WORK_BYTES: Final = 1 << 30
"""Memory in which built-in functions compute: mathematics that a model wrote may need any amount."""


def main() -> None:
    """Serve until standard input ends."""
    threading.Thread(target=_end_with_worker, daemon=True).start()
    answers = _take_stdout()
    say = _writer(answers)
    options = orjson.loads(sys.stdin.buffer.readline())
    kind = RewardKind(options["kind"])
    if options["modules"]:
        sys.path.insert(0, options["modules"])
    try:
        function = reward_function(kind, options["import_path"])
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything
        say({"error": f"importPath: {options['import_path']!r} cannot be imported ({_one_line(error)})"})
        return
    if not callable(function):
        say({"error": f"importPath: {options['import_path']!r} is no function"})
        return
    try:
        call = with_company(function, lambda one: caller(one, Signature(options["signature"])))
    except ValueError as error:
        say({"error": f"importPath: {options['import_path']!r} {error}"})
        return
    if kind is not RewardKind.PYTHON:
        _limit_memory()
    say({"ready": True})
    for line in sys.stdin.buffer:
        say(_score(call, json.loads(line)))  # orjson would round integers that need more than 64 bits.


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {text}"


def _take_stdout() -> BinaryIO:
    """Keep standard output for the answers; what reward code prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _end_with_worker() -> None:
    """The worker holds the other end of standard input: once that is closed, end everything that was started here."""
    lifeline = select.poll()
    lifeline.register(0, 0)  # Its end is reported in any case.
    lifeline.poll()
    os.killpg(os.getpid(), signal.SIGKILL)


def _limit_memory() -> None:
    """Beyond the limit, Python raises MemoryError, which counts as an answer that cannot be read."""
    num_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = num_pages * resource.getpagesize() + _WORK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _writer(answers: BinaryIO) -> Callable[[dict[str, Any]], None]:
    def say(message: dict[str, Any]) -> None:
        answers.write(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
        answers.flush()

    return say


def _score(call: Callable[[Sample], Any], sample: Sample) -> dict[str, Any]:
    try:
        reward = call(sample)
    except WrongReward as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever a reward raises is reported, with the sample
        return {"error": f"raised {type(error).__name__}: {error}"}
    try:
        return {"reward": finite_reward(reward)}
    except ValueError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    main()
