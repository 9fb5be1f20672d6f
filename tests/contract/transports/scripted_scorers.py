"""Reward functions that do what a response says, wherever their worker runs."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from longshore.api.reward import RewardFunction, RewardKind
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.rewards.scoring import (
    ResponseScorer,
    RewardError,
    RewardFault,
    RewardSetupError,
    ScoreItem,
    ScoreResult,
    WorkerBroken,
)

SOUND, UNUSABLE, BROKEN = FUNCTIONS = tuple(
    RewardFunction(name=name, kind=RewardKind.PYTHON, import_path="somewhere:score")
    for name in ("sound", "unusable", "broken")
)


@dataclass(frozen=True)
class Scripted(ScorerFactory):
    """Workers that start unless their function is none of the sound ones."""

    def create(self, function: RewardFunction) -> ResponseScorer:
        if function.name == UNUSABLE.name:
            raise RewardSetupError("reward.functions[unusable].importPath: there is no such module")
        if function.name == BROKEN.name:
            raise RuntimeError("CUDA error: the MPS server is not ready")
        return _Scorer()


class _Scorer(ResponseScorer):
    def score(self, item: ScoreItem) -> ScoreResult:
        match item.response:
            case "hangs":
                Path(item.prompt).write_text("begun")  # A pipe: the test reads it.
                threading.Event().wait()
            case "error" | "fault" | "broken" as kind:
                errors: dict[str, Callable[[str], Exception]] = {
                    "error": RewardError,
                    "fault": RewardFault,
                    "broken": WorkerBroken,
                }
                raise errors[kind](f"{item.sample} is a {kind}")
        return ScoreResult(float(item.response), 0.5)

    def close(self) -> None:
        """Do nothing: no function has started anything."""
