"""Have the reward functions of each row read its fields. Every mistake is reported with its row."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from longshore.api.environment import Environment, environment_of
from longshore.api.reward import RewardFunction, RewardKind
from longshore.checks.rows import functions_of, no_environment, unscored
from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.kinds.registry import kind_of
from longshore_runtime.rewards.scoring import ScoreItem

_NUM_REHEARSED: Final = 3
"""Number of rows that each function has to be able to score: one may be odd; several are not."""


def with_row_fields(
    prompts: PromptSets, functions: Sequence[RewardFunction], environments: Sequence[Environment] = ()
) -> PromptSets:
    """Return prompts with fields as functions read them; raises UserError for a row that cannot be scored."""
    return replace(
        prompts,
        train=tuple(_with_fields(record, functions, environments) for record in prompts.train),
        held_out=tuple(_with_fields(record, functions, environments) for record in prompts.held_out),
    )


def rehearsals(records: Sequence[PromptRecord], functions: Sequence[RewardFunction]) -> dict[str, Sequence[ScoreItem]]:
    """Return a few rows for each function, with their reference answers as responses: what it must be able to score."""
    return {function.name: _rehearsal(records, function) for function in functions}


def _rehearsal(records: Sequence[PromptRecord], function: RewardFunction) -> Sequence[ScoreItem]:
    scored = (record for record in records if functions_of(record.domain, [function]))
    chosen = itertools.islice(scored, _NUM_REHEARSED)
    return [
        ScoreItem(
            sample=f"{record.source or f'row {record.row}'}, its reference answer as the response",
            prompt=record.prompt,
            response=record.answer,
            answer=record.answer,
            row=record.fields,
            reference=record.reference,
            messages=record.messages,
        )
        for record in chosen
    ]


def _with_fields(
    record: PromptRecord, functions: Sequence[RewardFunction], environments: Sequence[Environment]
) -> PromptRecord:
    source = record.source or f"row {record.row}"
    if (mistake := unscored(record.domain, functions)) is not None:
        raise UserError(f"{source}: {mistake}")
    fields = dict(record.fields)
    reference = record.answer if record.reference is None else record.reference
    acts = environment_of(environments, record.domain) is not None
    for function in functions_of(record.domain, functions):
        if function.kind is RewardKind.ENVIRONMENT and not acts:
            raise UserError(f"{source}: {no_environment(function)}")
        fields |= kind_of(function.kind).read_row(function, record.fields, reference, source)
    return replace(record, fields=fields)
