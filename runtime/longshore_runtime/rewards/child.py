"""The scoring process: reads numbered samples as JSON lines and answers each with its reward.

`child_pipes` says how it is tied to the worker that started it.
"""

import json
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from longshore.api.reward_kind import RewardKind, Signature
from longshore_runtime.rewards.child_pipes import take_pipes
from longshore_runtime.rewards.company import with_company
from longshore_runtime.rewards.failure_text import error_with_place
from longshore_runtime.rewards.kinds.registry import child_kind_of
from longshore_runtime.rewards.numbers import finite_reward, is_boolean
from longshore_runtime.rewards.signatures import EventLoop, Sample, WrongReward, caller, takes_state

_WORK_BYTES: Final = 1 << 30
"""Bytes of memory in which built-in functions compute: mathematics that a model wrote may need any amount."""


class _CannotScore(Exception):
    """Raised when the function cannot be called; holds a field of it and what is wrong."""


def main(requests: int, replies: int) -> None:
    """Serve until the pipe of requests ends. Both arguments are file descriptors."""
    lines, write = take_pipes(requests, replies)
    loop = EventLoop()

    def say(number: int, message: Mapping[str, Any]) -> None:
        write(orjson.dumps({"number": number, **message}, option=orjson.OPT_APPEND_NEWLINE))

    options = orjson.loads(lines.readline())
    try:
        call, names_state = _prepared(options, loop)
    except _CannotScore as error:
        say(options["number"], {"error": str(error)})
        return
    say(options["number"], {"ready": True, "takes_state": names_state})
    while line := loop.wait_for(lines.readline):
        sample = json.loads(line)  # orjson would round integers that need more than 64 bits.
        say(sample["number"], _score(call, sample))


def _prepared(options: Mapping[str, Any], loop: EventLoop) -> tuple[Callable[[Sample], Any], bool]:
    """Return the function as one of a sample, and whether it takes the state of an episode. Raises: _CannotScore."""
    kind, path = child_kind_of(RewardKind(options["kind"])), options["import_path"]
    if options["modules"]:
        sys.path.insert(0, options["modules"])
    try:
        function = kind.load(path)
    except BaseException as error:
        raise _CannotScore(f"importPath: {path!r} cannot be imported ({error_with_place(error)})") from error
    if not callable(function):
        raise _CannotScore(f"importPath: {path!r} is no function")
    signature = Signature(options["signature"])
    try:
        call = with_company(function, lambda one: caller(one, signature, loop))
    except ValueError as error:
        raise _CannotScore(f"importPath: {path!r} {error}") from error
    if kind.limits_memory:
        _limit_memory()
    return call, takes_state(function, signature)


def _limit_memory() -> None:
    """Limit the memory: beyond it, Python raises MemoryError, which counts as an answer that cannot be read."""
    num_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = num_pages * resource.getpagesize() + _WORK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _score(call: Callable[[Sample], Any], sample: Sample) -> dict[str, Any]:
    try:
        reward = call(sample)
    except WrongReward as error:
        return {"error": str(error)}
    except BaseException as error:  # noqa: BLE001 - whatever a reward raises is reported, with the sample
        return {"error": f"raised {error_with_place(error)}"}
    try:
        return {"reward": finite_reward(reward)}
    except ValueError as error:
        fix = ": convert booleans with float()" if is_boolean(reward) else ""
        return {"error": f"{error}{fix}"}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
