"""Estimate the length of a job's prompts from a copy of its data on this machine."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from longshore.api.model import Source
from longshore.api.spec import RLJobSpec
from longshore.checks.job import is_jsonl
from longshore.checks.jsonl import RowError, jsonl_rows
from longshore.checks.rows import is_wanted, row_mistake, value_at
from longshore_cli.simulate.errors import BadInput

CHARACTERS_PER_TOKEN: Final = 4
"""Usual number of characters of a token in English text; the program has no tokenizer."""


def estimated_prompt_tokens(path: Path, spec: RLJobSpec) -> int:
    """Return the mean length in tokens, by characters, of the prompts that the job would use.

    Raises:
        BadInput: the file cannot be read as the data of the job, or all its prompts are too long.
    """
    if len(spec.data.each) != 1 or not is_jsonl(spec.data, path):
        raise BadInput("--data: prompts are measured in a JSONL file of a job with one data set.", "Leave --data out.")
    if not path.is_file():
        raise BadInput(f"There is no file {path}.")
    room = min(spec.data.max_prompt_tokens, spec.model.max_context_tokens - spec.algorithm.max_response_tokens)
    try:
        tokens = [
            max(1, round(_num_characters(fields, spec.data.each[0], f"{path}, line {number}") / CHARACTERS_PER_TOKEN))
            for number, fields in jsonl_rows(path, str(path))
            if is_wanted(fields, spec.data.where)
        ]
    except (RowError, OSError) as error:
        raise BadInput(f"--data: {error}") from error
    # The job leaves longer prompts out.
    used = [number for number in tokens if number <= room]
    if not used:
        raise BadInput(f"--data: {path} has no prompt for the job of at most {room:,} tokens, by its characters.")
    return round(fmean(used))


def _num_characters(fields: Mapping[str, Any], source: Source, where: str) -> int:
    if mistake := row_mistake(fields, source):
        raise BadInput(f"--data: {where}: {mistake}")
    prompt = value_at(fields, source.prompt_field)
    if isinstance(prompt, str):
        return len(source.prompt_template.replace("{prompt}", prompt))
    return sum(len(str(message.get("content") or "")) for message in prompt)
