"""Decide which checks there is something to look at for, and look at model and data."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from longshore.api.environment import EnvironmentKind
from longshore.api.model import Data, Source
from longshore.api.objectives.custom import Custom
from longshore.api.reward import RewardFunction
from longshore.api.spec import RLJobSpec
from longshore.api.training import TrainerBackend, TrainerSettings
from longshore.api.warm_start import WarmStartData
from longshore.checks.job import ROWS_ARE_RIGHT, few_prompts, is_jsonl
from longshore.checks.model_files import config_of
from longshore.checks.model_limits import vocab_size
from longshore.checks.result import Check, CheckResult, not_checked
from longshore.checks.rows import (
    domain_mistake,
    domain_of,
    functions_of,
    row_mistake,
    supervised_mistake,
    unused_templates,
    value_at,
)
from longshore_runtime.check.job_rows import UNREADABLE, rows_of, valid_rows
from longshore_runtime.check.user_code import (
    check_environment,
    check_objective,
    check_reward_calls,
    check_reward_import,
    check_rewards_of_environments,
)
from longshore_runtime.errors import UserError

if TYPE_CHECKING:
    from longshore_runtime.data.dataset import PromptSets
    from longshore_runtime.data.prompt_record import PromptRecord

_MOST_LINES: Final = 3
"""Largest number of places that a result names."""


@dataclass(frozen=True)
class CheckRequest:
    """Parts of a job that `longshore check` looks at."""

    spec: RLJobSpec
    model: Path | None
    """A checkpoint whose files have no mistake."""
    data: Path | None
    skipped: frozenset[str] = frozenset()
    warm_start_data: Path | None = None


def results(request: CheckRequest) -> Iterator[CheckResult]:
    """Yield all checks for which there is something to look at."""
    spec, model, data = request.spec, request.model, request.data
    if len(spec.data.each) != 1:
        data = None  # There is a copy of one data set.
    functions = spec.reward.functions
    if model is not None and spec.trainer.backend is TrainerBackend.MEGATRON:
        yield from _made(Check.TRAINER_SIZES, request, lambda name: _trainer_sizes(name, spec.trainer, model))
    if model is not None:
        yield from _made(Check.TOKENIZER, request, lambda name: _tokenizer(name, model))
    if data is not None and not is_jsonl(spec.data, data):
        yield from _made(Check.DATA_ROWS, request, lambda name: _data_rows(name, spec.data.each[0], functions, data))
    if data is not None:
        yield from _made(Check.REFERENCES, request, lambda name: _references(name, spec.data.each[0], functions, data))
    if model is not None and data is not None:
        yield from _made(Check.PROMPTS, request, lambda name: _prompts(name, spec, model, data))
    if spec.algorithm.warm_start is not None and spec.algorithm.warm_start.data is not None:
        supervised, rows = spec.algorithm.warm_start.data, request.warm_start_data
        yield from _made(Check.WARM_START, request, lambda name: _warm_start(name, spec, supervised, model, rows))
    if isinstance(spec.algorithm.objective, Custom):
        yield from _made(Check.OBJECTIVE, request, partial(check_objective, objective=spec.algorithm.objective))
    for one in functions:
        if one.import_path is not None:
            imports = list(_made(Check.REWARD_IMPORTS, request, partial(check_reward_import, function=one)))
            yield from imports
            if data is not None and imports and not imports[0].mistakes:
                calls = partial(check_reward_calls, function=one, spec=spec, path=data)
                yield from _made(Check.REWARD_CALLS, request, calls)
    if data is not None and spec.environments:
        yield from _made(Check.ENVIRONMENTS, request, partial(check_rewards_of_environments, spec=spec, path=data))
    for environment in spec.environments:
        if environment.kind is not EnvironmentKind.TASK:
            check = partial(check_environment, environment=environment, spec=spec, model=model, path=data)
            yield from _made(Check.ENVIRONMENTS, request, check)


def _made(name: Check, request: CheckRequest, check: Callable[[Check], CheckResult | None]) -> Iterator[CheckResult]:
    if name in request.skipped:
        return
    try:
        result = check(name)
        if result is not None:
            yield result
    except UserError as error:
        yield CheckResult(name, (str(error),))
    except ImportError as error:
        package = (error.name or str(error)).partition(".")[0]
        yield not_checked(name, f"the Python package {package} is not installed here; install longshore[runtime]")


def _trainer_sizes(name: Check, trainer: TrainerSettings, model: Path) -> CheckResult:
    from longshore_runtime.backends.trainer_limits import trainer_mistake

    mistake = trainer_mistake(trainer, model, model.name)
    return CheckResult(name, () if mistake is None else (mistake,), "the trainer can split the model")


def _tokenizer(name: Check, model: Path) -> CheckResult:
    from longshore_runtime.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model)
    template = "a" if tokenizer.chat_template else "no"
    return CheckResult(name, detail=f"{len(tokenizer):,} tokens, {template} chat template")


def _data_rows(name: Check, source: Source, functions: Sequence[RewardFunction], path: Path) -> CheckResult:
    """Check the rows of files that need packages of the runtime.

    The command line has checked the others.
    """
    rows, mistakes = rows_of(path, source), []
    for row in rows:
        mistake = row_mistake(row.fields, source) or domain_mistake(row.fields, source, functions)
        if mistake is not None:
            mistakes.append(f"{row.source}: {mistake}")
    mistakes = mistakes or unused_templates((row.fields, source) for row in rows)
    return CheckResult(name, tuple(mistakes), ROWS_ARE_RIGHT)


def _references(name: Check, source: Source, functions: Sequence[RewardFunction], path: Path) -> CheckResult | None:
    """Check that responses can be compared with each row; None: no function compares them with a part of it."""
    from longshore_runtime.rewards.kinds.registry import kind_of

    comparing = [one for one in functions if kind_of(one.kind).compares_with_rows]
    if not comparing:
        return None
    rows = valid_rows(path, source)
    if rows is None:
        return not_checked(name, UNREADABLE)
    mistakes = []
    for row in rows:
        if domain_mistake(row.fields, source, functions) is not None:
            continue
        domain = domain_of(row.fields, source) or ""
        reference = value_at(row.fields, source.answer_field)
        for function in functions_of(domain, comparing):
            try:
                kind_of(function.kind).read_row(function, row.fields, reference, row.source)
            except UserError as error:
                mistakes.append(str(error))
    return CheckResult(name, tuple(mistakes), f"{len(rows):,} rows can be scored")


def _prompts(name: Check, spec: RLJobSpec, model: Path, path: Path) -> CheckResult:
    from longshore_runtime.data.chat import NoChatTemplate
    from longshore_runtime.data.dataset import divided, prompt_record
    from longshore_runtime.data.encoding import prompt_encoding
    from longshore_runtime.data.suitability import require_known_tokens, turn_remark
    from longshore_runtime.data.template_arguments import require_arguments_read
    from longshore_runtime.data.tokenizer import load_tokenizer

    rows = valid_rows(path, spec.data.each[0])
    if rows is None:
        return not_checked(name, UNREADABLE)
    tokenizer = load_tokenizer(model)
    require_arguments_read(spec.data.chat, tokenizer)
    encoding = prompt_encoding(tokenizer)
    records, mistakes = [], []
    for index, row in enumerate(rows):
        try:
            records.append(prompt_record(index, row, spec.data, tokenizer, encoding))
        except NoChatTemplate as error:
            return CheckResult(name, (str(error),))
        except UserError as error:
            mistakes.append(str(error))
    if mistakes:
        return CheckResult(name, tuple(mistakes))
    if not records:
        return not_checked(name, "no row is a prompt")
    context_tokens = spec.model.max_context_tokens - spec.algorithm.max_response_tokens
    sets = divided(records, spec.data, context_tokens)
    require_known_tokens(sets, vocab_size(config_of(model)))
    few = few_prompts(len(sets.train), spec.algorithm.prompts_per_step)
    remarks = (few, turn_remark(sets, spec.data.chat, tokenizer))
    found = tuple(remark for remark in remarks if remark is not None)
    return CheckResult(name, found, _lengths(records, spec.data, context_tokens) + _repeats(sets))


def _warm_start(
    name: Check, spec: RLJobSpec, data: WarmStartData, model: Path | None, path: Path | None
) -> CheckResult:
    """Check that every row has a prompt and a response, and what they are as tokens if there is a model."""
    from longshore_runtime.data.supervised import exchanges, too_long_remark
    from longshore_runtime.data.tokenizer import load_tokenizer

    if path is None:
        return not_checked(name, f"name a copy of {data.path or data.hub!r} with --warm-start-data")
    rows = rows_of(path, data.source)
    found = [(row, supervised_mistake(row.fields, data)) for row in rows]
    if mistakes := tuple(f"{row.source}: {mistake}" for row, mistake in found if mistake is not None):
        return CheckResult(name, mistakes)
    if model is None:
        return CheckResult(name, detail=f"{len(rows):,} rows have a response; lengths need --model")
    max_tokens, known = spec.model.max_context_tokens, vocab_size(config_of(model))
    fitting, num_too_long = exchanges(rows, data, spec.data.chat, load_tokenizer(model), max_tokens, known)
    remarks = (too_long_remark(num_too_long, len(rows)),) if num_too_long else ()
    longest = max(one.num_tokens for one in fitting)
    return CheckResult(name, remarks, f"{len(fitting):,} rows to imitate, the longest has {longest:,} tokens")


def _lengths(records: "Sequence[PromptRecord]", data: Data, context_tokens: int) -> str:
    from longshore_runtime.data.dataset import most_prompt_tokens

    longest = max(records, key=lambda record: len(record.prompt_tokens))
    found = f"{len(records):,} prompts, the longest has {len(longest.prompt_tokens):,} tokens"
    limit = most_prompt_tokens(data, context_tokens)
    left_out = [record.source.rpartition(", ")[2] for record in records if len(record.prompt_tokens) > limit]
    if not left_out:
        return found
    by = "data.maxPromptTokens" if limit == data.max_prompt_tokens else "maxContextTokens less maxResponseTokens"
    more = len(left_out) - _MOST_LINES
    places = ", ".join(left_out[:_MOST_LINES]) + (f" and {more:,} more" if more > 0 else "")
    return f"{found}; {len(left_out):,} with more than {limit:,} ({by}) are left out: {places}"


def _repeats(sets: "PromptSets") -> str:
    num_left_out = sets.num_repeating_held_out
    return f"; {num_left_out:,} more repeat held-out prompts and are not trained on" if num_left_out else ""
