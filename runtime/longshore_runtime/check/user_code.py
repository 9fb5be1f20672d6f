"""Checks that run code of users: objective, reward functions, environments."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longshore.api.environment import Environment, environment_of
from longshore.api.objectives.custom import Custom
from longshore.api.reward import RewardFunction
from longshore.api.reward_kind import RewardKind
from longshore.api.spec import RLJobSpec
from longshore.checks.result import Check, CheckResult, not_checked
from longshore.checks.rows import domain_of, functions_of, no_environment
from longshore_runtime.check.job_rows import UNREADABLE, scored_record, valid_rows
from longshore_runtime.errors import UserError

if TYPE_CHECKING:
    from longshore_runtime.data.prompt_record import PromptRecord
    from longshore_runtime.data.reading import Row


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
    from longshore_runtime.rewards.row_fields import rehearsals
    from longshore_runtime.rewards.scoring import RewardSetupError

    rows = valid_rows(path, spec.data.each[0])
    if rows is None:
        return not_checked(name, UNREADABLE)
    rehearsal = rehearsals([scored_record(index, row, spec) for index, row in enumerate(rows)], [function])
    items = rehearsal[function.name]
    if not items:
        return not_checked(name, f"{function.name} scores no row of the data")
    try:
        scorer = ChildScorer(function, items)
        scorer.close()
    except RewardSetupError as error:
        fix = f"correct it, or add --skip {name} if it needs what only the pods of the job have"
        return CheckResult(name, (f"{error}; {fix}",))
    if not scorer.is_rehearsed:
        return CheckResult(name, detail=f"{function.import_path} takes the state of an episode, so it was not called")
    return CheckResult(name, detail=f"{function.import_path} was called with {len(items)} rows of the data")


def check_environment(
    name: Check, environment: Environment, spec: RLJobSpec, model: Path | None, path: Path | None
) -> CheckResult:
    """Import an environment, and play an episode with the first row that acts in it, in a process of its own."""
    from longshore_runtime.environments.trial import EnvironmentMistake, ImportMistake, require_import

    if find_spec("transformers") is None:
        raise ModuleNotFoundError(name="transformers")  # The process that describes tools would end without a reason.
    rows = None if path is None else _acting_rows(spec, path, environment)
    if rows == [] and path is not None and valid_rows(path, spec.data.each[0]):
        problem = "no row acts in it: their domains are others, or an environment before it has them"
        return CheckResult(name, (f"environments[{environment.name}].domains: {problem}; correct them, or remove it",))
    try:
        if (seen := _played(environment, rows or [], spec, model)) is not None:
            return CheckResult(name, detail=seen)
        require_import(environment)
    except EnvironmentMistake as error:
        more = "put its directory on PYTHONPATH, " if isinstance(error, ImportMistake) else ""
        fix = f"correct it, {more}or add --skip {name} if only the pods of the job have what it needs"
        return CheckResult(name, (f"{error}; {fix}",))
    return CheckResult(name, detail=f"{environment.name}: it can be imported; no episode was played without a row")


def _played(environment: Environment, rows: "Sequence[Row]", spec: RLJobSpec, model: Path | None) -> str | None:
    """Return what was seen of an episode, or None if none of the rows is a prompt of the job."""
    from longshore_runtime.data.tokenizer import load_tokenizer
    from longshore_runtime.environments.attempt import EpisodeLimits
    from longshore_runtime.environments.conversation import Conversations
    from longshore_runtime.environments.trial import play
    from longshore_runtime.rewards.scoring import reads_state

    tokenizer = None if model is None or not rows else load_tokenizer(model)
    record = next(_episode_records(rows, spec, tokenizer), None)
    if record is None:
        return None
    functions = functions_of(record.domain, spec.reward.functions)
    return play(
        environment,
        record,
        None if tokenizer is None else Conversations(spec.data.chat, tokenizer),
        EpisodeLimits(spec.algorithm.max_response_tokens, spec.model.max_context_tokens),
        needs_reward=any(one.kind is RewardKind.ENVIRONMENT for one in functions),
        wants_state=any(map(reads_state, functions)),
    )


def check_rewards_of_environments(name: Check, spec: RLJobSpec, path: Path) -> CheckResult | None:
    """Find functions that take the reward of an environment, for rows that act in none; None: they do not."""
    rows, mistakes = _acting_rows(spec, path, None) or [], []
    for function in spec.reward.functions:
        if function.kind is RewardKind.ENVIRONMENT:
            scored = (row for row in rows if functions_of(domain_of(row.fields, row.data_set) or "", [function]))
            mistakes += [f"{row.source}: {no_environment(function)}" for row in itertools.islice(scored, 1)]
    return CheckResult(name, tuple(mistakes)) if mistakes else None


def _acting_rows(spec: RLJobSpec, path: Path, environment: Environment | None) -> "list[Row] | None":
    """Return the rows that act in an environment, or in none; None if the file cannot be read."""
    rows = valid_rows(path, spec.data.each[0])
    if rows is None:
        return None
    domains = [domain_of(row.fields, row.data_set) for row in rows]
    return [
        row
        for row, domain in zip(rows, domains, strict=True)
        if domain is not None and environment_of(spec.environments, domain) is environment
    ]


def _episode_records(rows: "Sequence[Row]", spec: RLJobSpec, tokenizer: Any) -> "Iterator[PromptRecord]":
    """Yield rows as environments see them, without those that a job would leave out, or that other checks refuse."""
    from longshore_runtime.data.dataset import PromptSets, most_prompt_tokens, prompt_record
    from longshore_runtime.data.encoding import prompt_encoding
    from longshore_runtime.rewards.row_fields import with_row_fields

    limit = most_prompt_tokens(spec.data, spec.model.max_context_tokens - spec.algorithm.max_response_tokens)
    encoding = None if tokenizer is None else prompt_encoding(tokenizer)
    for index, row in enumerate(rows):
        with contextlib.suppress(UserError):
            if encoding is None:
                record = scored_record(index, row, spec)
            else:
                record = prompt_record(index, row, spec.data, tokenizer, encoding)
            if len(record.prompt_tokens) <= limit:
                yield from with_row_fields(PromptSets((record,), (), 0), spec.reward.functions, spec.environments).train
