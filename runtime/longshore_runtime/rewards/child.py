"""The scoring process: reads samples as JSON lines, answers each with its reward. Started by `scorer`."""

import math
import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import orjson

from longshore.api.training import RewardKind
from longshore_runtime.rewards.functions import RewardFunction, reward_function


def main() -> None:
    """Serve until standard input ends."""
    answers = _take_stdout()
    say = _writer(answers)
    options = orjson.loads(sys.stdin.buffer.readline())
    try:
        function = reward_function(RewardKind(options["kind"]), options["import_path"])
    except (ImportError, AttributeError) as error:
        say({"error": f"reward.importPath: {options['import_path']!r} cannot be imported ({error})"})
        return
    say({"ready": True})
    for line in sys.stdin.buffer:
        say(_score(function, orjson.loads(line)))


def _take_stdout() -> BinaryIO:
    """Keep standard output for the answers; what reward code prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _writer(answers: BinaryIO) -> Callable[[dict[str, Any]], None]:
    def say(message: dict[str, Any]) -> None:
        answers.write(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
        answers.flush()

    return say


def _score(function: RewardFunction, sample: dict[str, str]) -> dict[str, Any]:
    try:
        reward = function(sample["prompt"], sample["response"], sample["answer"])
    except Exception as error:  # noqa: BLE001 - whatever a reward raises is reported, with the sample
        return {"error": f"raised {type(error).__name__}: {error}"}
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        return {"error": f"returned {reward!r} instead of a number"}
    if not math.isfinite(reward):
        return {"error": f"returned {reward}"}
    return {"reward": float(reward)}


if __name__ == "__main__":
    main()
