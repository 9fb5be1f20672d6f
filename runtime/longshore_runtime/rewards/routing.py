"""Which reward functions score which rows. Every mistake is told with its row."""

from collections.abc import Sequence
from dataclasses import replace

from longshore.api.reward import RewardFunction, RewardKind
from longshore_runtime.data.dataset import PromptSets
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.code import cases_of
from longshore_runtime.types import PromptRecord


def routed(prompts: PromptSets, functions: Sequence[RewardFunction], domain_field: str | None) -> PromptSets:
    """Prompts with their domain and reward functions; raises UserError for a row that nothing scores."""
    return replace(
        prompts,
        train=tuple(_routed(record, functions, domain_field) for record in prompts.train),
        held_out=tuple(_routed(record, functions, domain_field) for record in prompts.held_out),
    )


def _routed(record: PromptRecord, functions: Sequence[RewardFunction], domain_field: str | None) -> PromptRecord:
    source = record.source or f"row {record.index}"
    domain = _domain(record, domain_field, source)
    chosen = [function for function in functions if not function.domains or domain in function.domains]
    if not chosen:
        raise UserError(f"{source}: no reward function scores domain {domain!r}; add it to reward.functions[].domains")
    for function in chosen:
        if function.kind is RewardKind.CODE:
            try:
                cases_of(record.fields, function.code.tests_field, source)
            except ValueError as error:
                raise UserError(str(error)) from error
    return replace(record, domain=domain, rewards=tuple(function.name for function in chosen))


def _domain(record: PromptRecord, field: str | None, source: str) -> str:
    if field is None:
        return ""
    value = record.fields.get(field)
    if not isinstance(value, str):
        raise UserError(f"{source}: {field!r} must be a text with the domain of the row; set data.domainField")
    return value
