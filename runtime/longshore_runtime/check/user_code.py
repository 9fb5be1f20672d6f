"""Checks that run code of users: objective and reward functions."""

from pathlib import Path
from typing import TYPE_CHECKING

from longshore.api.objectives.custom import Custom
from longshore.api.reward import RewardFunction
from longshore.api.spec import RLJobSpec
from longshore.checks.result import Check, CheckResult, not_checked
from longshore_runtime.check.job_rows import UNREADABLE, scored_record, valid_rows

if TYPE_CHECKING:
    pass


def check_objective(name: Check, objective: Custom) -> CheckResult:
    """Try the objective with a few tokens."""
    from longshore_runtime.backends.objective_trial import objective_mistake

    if (mistake := objective_mistake(objective)) is not None:
        return CheckResult(name, (f"{mistake}; or add --skip {name} if only the image has it",))
    return CheckResult(name, detail=f"{objective.import_path} gives losses with gradients")


def check_reward_import(name: Check, function: RewardFunction) -> CheckResult:
    """Import a reward function in a process of its own."""
    from longshore_runtime.rewards.child_scorer import ChildScorer
    from longshore_runtime.rewards.scoring import RewardSetupError

    try:
        ChildScorer(function).close()
    except RewardSetupError as error:
        fix = f"correct it, put its directory on PYTHONPATH, or add --skip {name} if only the image has it"
        return CheckResult(name, (f"{error}; {fix}",))
    return CheckResult(name, detail=f"{function.import_path} is a function")


def check_reward_calls(name: Check, function: RewardFunction, spec: RLJobSpec, path: Path) -> CheckResult:
    """Score rows as the reward pods do before they are used: with their reference answers as responses."""
    from longshore_runtime.rewards.child_scorer import ChildScorer
    from longshore_runtime.rewards.routing import rehearsals
    from longshore_runtime.rewards.scoring import RewardSetupError

    rows = valid_rows(path, spec.data.each[0])
    if rows is None:
        return not_checked(name, UNREADABLE)
    rehearsal = rehearsals([scored_record(index, row, spec) for index, row in enumerate(rows)], [function])
    items = rehearsal[function.name]
    if not items:
        return not_checked(name, f"{function.name} scores no row of the data")
    try:
        ChildScorer(function, items).close()
    except RewardSetupError as error:
        fix = f"correct it, or add --skip {name} if it needs what only the pods of the job have"
        return CheckResult(name, (f"{error}; {fix}",))
    return CheckResult(name, detail=f"{function.import_path} was called with {len(items)} rows of the data")
