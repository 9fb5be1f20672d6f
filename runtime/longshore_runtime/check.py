"""The part of `longshore check` that needs packages of the runtime: tokenizer, prompts, references, reward imports.

The command line runs it as a process of its own, `python -m longshore_runtime.check`: a request as JSON comes in, one
JSON line for each check goes out. Every check calls what the coordinator calls when the job starts.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from longshore.api.model import Data, Source
from longshore.api.objectives.custom import Custom
from longshore.api.reward import RewardFunction
from longshore.api.spec import RLJobSpec
from longshore.api.training import TrainerBackend, TrainerSettings
from longshore.checks.job import ROWS_ARE_RIGHT, few_prompts, is_jsonl
from longshore.checks.model_files import config_of
from longshore.checks.model_limits import vocab_size
from longshore.checks.result import Check, CheckResult, not_checked
from longshore.checks.rows import domain_mistake, domain_of, functions_of, row_mistake, unused_templates, value_at
from longshore_runtime.errors import UserError

if TYPE_CHECKING:
    from longshore_runtime.data.dataset import PromptSets
    from longshore_runtime.data.prompt_record import PromptRecord
    from longshore_runtime.data.reading import Row

_MOST_LINES: Final = 3
"""Largest number of places that a result names."""
_UNREADABLE: Final = "the data cannot be read"


@dataclass(frozen=True)
class CheckRequest:
    """Parts of a job that `longshore check` looks at."""

    spec: RLJobSpec
    model: Path | None
    """A checkpoint whose files have no mistake."""
    data: Path | None
    skipped: frozenset[str] = frozenset()


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
    if isinstance(spec.algorithm.objective, Custom):
        yield from _made(Check.OBJECTIVE, request, partial(_objective, objective=spec.algorithm.objective))
    for one in functions:
        if one.import_path is not None:
            imports = list(_made(Check.REWARD_IMPORTS, request, partial(_import, function=one)))
            yield from imports
            if data is not None and imports and not imports[0].mistakes:
                yield from _made(Check.REWARD_CALLS, request, partial(_call, function=one, spec=spec, path=data))


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
    rows, mistakes = _rows(path, source), []
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
    rows = _valid_rows(path, source)
    if rows is None:
        return not_checked(name, _UNREADABLE)
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

    rows = _valid_rows(path, spec.data.each[0])
    if rows is None:
        return not_checked(name, _UNREADABLE)
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


def _objective(name: Check, objective: Custom) -> CheckResult:
    from longshore_runtime.backends.objective_trial import objective_mistake

    if (mistake := objective_mistake(objective)) is not None:
        return CheckResult(name, (f"{mistake}; or add --skip {name} if only the image has it",))
    return CheckResult(name, detail=f"{objective.import_path} gives losses with gradients")


def _import(name: Check, function: RewardFunction) -> CheckResult:
    from longshore_runtime.rewards.child_scorer import ChildScorer
    from longshore_runtime.rewards.scoring import RewardSetupError

    try:
        ChildScorer(function).close()
    except RewardSetupError as error:
        fix = f"correct it, put its directory on PYTHONPATH, or add --skip {name} if only the image has it"
        return CheckResult(name, (f"{error}; {fix}",))
    return CheckResult(name, detail=f"{function.import_path} is a function")


def _call(name: Check, function: RewardFunction, spec: RLJobSpec, path: Path) -> CheckResult:
    """Score rows as the reward pods do before they are used: with their reference answers as responses."""
    from longshore_runtime.rewards.child_scorer import ChildScorer
    from longshore_runtime.rewards.routing import rehearsals
    from longshore_runtime.rewards.scoring import RewardSetupError

    rows = _valid_rows(path, spec.data.each[0])
    if rows is None:
        return not_checked(name, _UNREADABLE)
    rehearsal = rehearsals([_scored_record(index, row, spec) for index, row in enumerate(rows)], [function])
    items = rehearsal[function.name]
    if not items:
        return not_checked(name, f"{function.name} scores no row of the data")
    try:
        ChildScorer(function, items).close()
    except RewardSetupError as error:
        fix = f"correct it, or add --skip {name} if it needs what only the pods of the job have"
        return CheckResult(name, (f"{error}; {fix}",))
    return CheckResult(name, detail=f"{function.import_path} was called with {len(items)} rows of the data")


def _scored_record(index: int, row: "Row", spec: RLJobSpec) -> "PromptRecord":
    """Return a row as reward functions see it; its prompt as text has no chat template, which only a model has."""
    from longshore_runtime.data.chat import conversation
    from longshore_runtime.data.prompt_record import PromptRecord
    from longshore_runtime.trajectories.trajectory import token_ids

    source = row.data_set
    prompt = value_at(row.fields, source.prompt_field)
    if isinstance(prompt, str):
        prompt = source.prompt_template.replace("{prompt}", prompt)
    messages = conversation(prompt, spec.data.chat)
    text = "\n".join(str(message.get("content") or "") for message in messages) if messages else prompt
    domain = domain_of(row.fields, source) or ""
    reference = value_at(row.fields, source.answer_field)
    return PromptRecord(
        index, text, token_ids(()), "" if reference is None else str(reference), row.fields, row.source, domain,
        tuple(one.name for one in functions_of(domain, spec.reward.functions)), reference, messages,
    )  # fmt: skip


def _valid_rows(path: Path, source: Source) -> "list[Row] | None":
    """Return the rows that are prompts with answers, or None if the file cannot be read.

    `Check.DATA_ROWS` tells what is wrong with the others.
    """
    try:
        return [row for row in _rows(path, source) if row_mistake(row.fields, source) is None]
    except UserError:
        return None


def _rows(path: Path, source: Source) -> "list[Row]":
    """Read the rows of a file; raises UserError if it cannot be read."""
    from longshore_runtime.data.reading import DataFile, read_files, read_rows

    is_download = source.origin.path is None
    return read_files([DataFile(path.name, path)], source) if is_download else read_rows(path, source)


def main() -> None:
    """Read one request from standard input, and write its results to standard output."""
    say = _taken_stdout()
    options: dict[str, Any] = json.load(sys.stdin)
    model, data = (None if options[name] is None else Path(options[name]) for name in ("model", "data"))
    spec = RLJobSpec.model_validate(options["spec"])
    for result in results(CheckRequest(spec, model, data, frozenset(options["skipped"]))):
        say(asdict(result))


def _taken_stdout() -> Callable[[dict[str, Any]], None]:
    """Keep standard output for the results; what imported packages print goes to standard error."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        lines.write(json.dumps(message) + "\n")
        lines.flush()

    return say


if __name__ == "__main__":
    main()
