"""Rows of the job's data, for checks that look at them."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from longshore.api.model import Source
from longshore.api.spec import RLJobSpec
from longshore.checks.rows import domain_of, row_mistake, value_at
from longshore_runtime.errors import UserError

if TYPE_CHECKING:
    from longshore_runtime.data.prompt_record import PromptRecord
    from longshore_runtime.data.reading import Row

UNREADABLE: Final = "the data cannot be read"
"""Reason of a check that was not made because `valid_rows` returns None."""


def valid_rows(path: Path, source: Source) -> "list[Row] | None":
    """Return the rows that are prompts with answers, or None if the file cannot be read.

    `Check.DATA_ROWS` tells what is wrong with the others.
    """
    try:
        return [row for row in rows_of(path, source) if row_mistake(row.fields, source) is None]
    except UserError:
        return None


def rows_of(path: Path, source: Source) -> "list[Row]":
    """Read the rows of a file; raises UserError if it cannot be read."""
    from longshore_runtime.data.reading import DataFile, read_files, read_rows

    is_download = source.origin.path is None
    return read_files([DataFile(path.name, path)], source) if is_download else read_rows(path, source)


def scored_record(index: int, row: "Row", spec: RLJobSpec) -> "PromptRecord":
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
        reference, messages,
    )  # fmt: skip
