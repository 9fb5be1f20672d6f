"""The kinds of reward functions by name. Each is imported when it is first used: processes that score start often."""

from longshore.api.reward_kind import RewardKind
from longshore_runtime.rewards.kinds.kind import ChildKind, Kind


def kind_of(name: RewardKind) -> Kind:
    """Return a kind. It is registered here."""
    match name:
        case RewardKind.TASK | RewardKind.MATHS | RewardKind.PYTHON:
            return child_kind_of(name)
        case RewardKind.CODE:
            from longshore_runtime.rewards.kinds.code import CodeKind

            return CodeKind()
        case RewardKind.JUDGE:
            from longshore_runtime.rewards.kinds.judge import JudgeKind

            return JudgeKind()
        case RewardKind.HTTP:
            from longshore_runtime.rewards.kinds.http import HttpKind

            return HttpKind()
        case RewardKind.ENVIRONMENT:
            from longshore_runtime.rewards.kinds.environment import EnvironmentRewardKind

            return EnvironmentRewardKind()


def child_kind_of(name: RewardKind) -> ChildKind:
    """Return a kind whose functions run in a process of their own."""
    match name:
        case RewardKind.TASK:
            from longshore_runtime.rewards.kinds.task import TaskKind

            return TaskKind()
        case RewardKind.MATHS:
            from longshore_runtime.rewards.kinds.maths import MathsKind

            return MathsKind()
        case RewardKind.PYTHON:
            from longshore_runtime.rewards.kinds.python import PythonKind

            return PythonKind()
        case _:
            raise AssertionError(f"kind {name} is not scored in a process of its own")
