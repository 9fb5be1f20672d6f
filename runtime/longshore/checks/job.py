"""All that can be known of a job from its spec and copies of its files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from longshore.api.model import DataFormat, Source
from longshore.api.reward import RewardFunction
from longshore.api.spec import RLJobSpec
from longshore.checks.jsonl import RowError, jsonl_rows
from longshore.checks.model_files import config_of, model_file_mistakes
from longshore.checks.model_limits import limit_mistakes
from longshore.checks.rows import domain_mistake, is_wanted, row_mistake


def model_mistakes(spec: RLJobSpec, directory: Path) -> list[str]:
    """Of a copy of its checkpoint. Those of its files come first: others would follow from them."""
    field = "model.path" if spec.model.hub is None else "model.hub"
    name = spec.model.path or spec.model.hub or str(directory)
    return model_file_mistakes(directory, name, field) or limit_mistakes(
        config_of(directory),
        spec.rollout.engine,
        spec.model.max_context_tokens,
        has_accelerator=spec.workers.has_accelerator,
        field=field,
    )


def data_mistakes(spec: RLJobSpec, path: Path) -> list[str]:
    """Of a copy of its only data set as JSONL: one for each row, up to the first line that is no JSON."""
    data, name = spec.data, spec.data.path or spec.data.hub or str(path)
    if data.format is not DataFormat.JSONL or len(data.each) != 1:
        return []
    if not path.is_file():
        return [f"data.path: {name!r} is not a file; set data.format to Parquet or HuggingFace for a directory"]
    mistakes = list(_row_mistakes(path, name, data.each[0], spec.reward.functions))
    if not mistakes:
        num_rows = sum(1 for _, fields in jsonl_rows(path, name) if is_wanted(fields, data.where))
        mistakes += _count_mistakes(num_rows, name, spec)
    return mistakes


def _row_mistakes(path: Path, name: str, source: Source, functions: Sequence[RewardFunction]) -> Iterator[str]:
    try:
        for number, fields in jsonl_rows(path, name):
            if not is_wanted(fields, source.origin.where):
                continue
            mistake = row_mistake(fields, source) or domain_mistake(fields, source, functions)
            if mistake is not None:
                yield f"{name}, line {number}: {mistake}"
    except RowError as error:
        yield str(error)


def _count_mistakes(num_rows: int, name: str, spec: RLJobSpec) -> Iterator[str]:
    num_train = num_rows - min(spec.data.held_out_prompts, num_rows // 2)
    if not num_rows:
        yield f"data.path: {name!r} holds no row"
    elif (remark := few_prompts(num_train, spec.algorithm.prompts_per_step)) is not None:
        yield remark


def few_prompts(num_train: int, prompts_per_step: int) -> str | None:
    """What to tell where one step trains on a prompt more than once; None: nothing."""
    if num_train >= prompts_per_step:
        return None
    return (
        f"data: {num_train} prompts to train on are fewer than algorithm.promptsPerStep ({prompts_per_step}): every "
        "step repeats some of them; add prompts, or lower promptsPerStep or data.heldOutPrompts"
    )
