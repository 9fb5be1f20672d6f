"""All that can be known of a job from its spec and copies of its files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from longshore.api.model import Data, DataFormat, Source
from longshore.api.quantity import parse_bytes
from longshore.api.reward import RewardFunction
from longshore.api.spec import RLJobSpec
from longshore.api.tracking import Tracking
from longshore.checks.engine_arguments import argument_mistakes, installed_arguments, unknown_arguments
from longshore.checks.jsonl import RowError, jsonl_rows
from longshore.checks.memory import ModelSize, engine_need, gib, memory_mistakes, recompute_on, trainer_need
from longshore.checks.model_files import config_of, model_file_mistakes, num_parameters
from longshore.checks.model_limits import expert_mistakes, limit_mistakes, position_mistakes, routing_bytes
from longshore.checks.pod_memory import (
    coordinator_memory,
    max_step_tokens,
    pod_memory_mistakes,
    pod_need,
    trainer_choices,
    with_fitting_trainer,
)
from longshore.checks.result import Check, CheckResult, not_checked
from longshore.checks.rows import domain_mistake, is_wanted, none_wanted, row_mistake, unused_templates
from longshore.checks.trackers import missing_packages

_LORA_RATE_RATIO: Final = 10
"""Learning rate of an adapter by that of all weights, whatever the rank. Source: Thinking Machines, "LoRA Without
Regret"."""
_LOW_LORA_RATE: Final = 5e-6
"""Rates below are common for all weights, and not for adapters."""
ROWS_ARE_RIGHT: Final = "every row is a prompt with an answer"


def file_checks(spec: RLJobSpec, model: Path | None, data: Path | None, gpu_bytes: float | None) -> list[CheckResult]:
    """Check the files of a job; `gpu_bytes`: memory of a GPU of its nodes, if that is known."""
    results = []
    if spec.rollout.engine.extra_args:
        results.append(_arguments_check(spec))
    if model is not None:
        results += _model_checks(spec, model, gpu_bytes)
    elif spec.model.builtin is None:
        results.append(not_checked(Check.MODEL_FILES, f"name a copy of {_model_name(spec)!r} with --model"))
    results.append(_coordinator_check(spec, model))
    if spec.trainer.lora is not None:
        results.append(_learning_rate_check(spec.algorithm.learning_rate))
    if spec.data.builtin is None:
        results.append(_rows_check(spec, data))
    if spec.tracking.packages:
        results.append(_trackers_check(spec.tracking))
    return results


def _arguments_check(spec: RLJobSpec) -> CheckResult:
    name, engine = Check.ENGINE_ARGUMENTS, spec.rollout.engine
    mistakes = list(argument_mistakes(engine, has_accelerator=spec.workers.has_accelerator))
    found = "nothing contradicts what follows from other fields"
    if (known := installed_arguments()) is None:
        found += "; names are not checked, because vLLM is not installed here"
    else:
        other = f"; add --skip {name} if the image has another version of vLLM that knows it"
        mistakes += [f"{mistake}{other}" for mistake in unknown_arguments(engine, known)]
    return CheckResult(name, tuple(mistakes), found)


def _model_checks(spec: RLJobSpec, directory: Path, gpu_bytes: float | None) -> list[CheckResult]:
    mistakes = model_file_mistakes(directory, _model_name(spec) or str(directory), _model_field(spec))
    if mistakes:  # Others would follow from them.
        return [CheckResult(Check.MODEL_FILES, tuple(mistakes))]
    size = num_parameters(directory)
    return [
        CheckResult(Check.MODEL_FILES, detail=f"{size:,} parameters, and all files are whole"),
        CheckResult(
            Check.MODEL_LIMITS, tuple(model_mistakes(spec, directory)), "context, heads and engine sizes suit it"
        ),
        *([_memory_check(spec, directory, size, gpu_bytes)] if spec.workers.has_accelerator else []),
        *([] if spec.training_pods.has_accelerator else [_pod_memory_check(spec, directory, size)]),
    ]


def _model_name(spec: RLJobSpec) -> str | None:
    return spec.model.path or spec.model.hub


def _model_field(spec: RLJobSpec) -> str:
    return "model.path" if spec.model.hub is None else "model.hub"


def _memory_check(spec: RLJobSpec, directory: Path, size: int, gpu_bytes: float | None) -> CheckResult:
    name = Check.GPU_MEMORY
    model = ModelSize.of(config_of(directory), size)
    if model is None:
        return not_checked(name, "config.json does not tell the sizes of the model")
    needs = f"an engine needs about {engine_need(spec, model)}, a trainer {trainer_need(spec, model)} of a GPU"
    if gpu_bytes is None:
        return not_checked(name, f"{needs}; name the GPU with --gpu-type or --gpu-memory")
    found = f"{needs} with {gib(gpu_bytes)} GiB; recompute: {recompute_on(gpu_bytes, spec, model)}"
    return CheckResult(name, tuple(memory_mistakes(spec, model, gpu_bytes)), found)


def _pod_memory_check(spec: RLJobSpec, directory: Path, size: int) -> CheckResult:
    name = Check.POD_MEMORY
    model = ModelSize.of(config_of(directory), size)
    if model is None:
        return not_checked(name, "config.json does not tell the sizes of the model")
    job = with_fitting_trainer(spec, model)
    found = f"a pod needs about {pod_need(job, model)} with {trainer_choices(job)}"
    return CheckResult(name, tuple(pod_memory_mistakes(spec, model)), found)


def _coordinator_check(spec: RLJobSpec, directory: Path | None) -> CheckResult:
    name, requested = Check.COORDINATOR_MEMORY, spec.coordinator.resources.get("memory")
    steps = f"for steps of up to {max_step_tokens(spec.algorithm):,} response tokens"
    if not spec.trainer.router_replay:
        needed = coordinator_memory(spec)
        found = f"{needed} by default" if requested is None else f"{requested} ({needed} by default)"
        return CheckResult(name, detail=f"it requests {found}, {steps}")
    assert requested is not None, "a rule of the spec"
    expert_bytes = 0 if directory is None else routing_bytes(config_of(directory))
    if not expert_bytes:
        return not_checked(name, f"it requests {requested}; how much the experts of tokens need depends on the model")
    needed = coordinator_memory(spec, expert_bytes)
    found = f"it requests {requested}, and needs {needed} with the experts of all tokens, {steps}"
    if parse_bytes(requested) < parse_bytes(needed):
        return CheckResult(name, (f"coordinator.resources: {found}; set memory to {needed}",))
    return CheckResult(name, detail=found)


def _learning_rate_check(rate: float) -> CheckResult:
    """Return advice for an adapter; no rate is a mistake."""
    found = f"{rate:g}, and an adapter usually learns with {_LORA_RATE_RATIO} times the rate of all weights"
    low = f"; it may be too low: try {_LORA_RATE_RATIO * rate:g}" if rate < _LOW_LORA_RATE else ""
    return CheckResult(Check.LEARNING_RATE, detail=found + low)


def _trackers_check(tracking: Tracking) -> CheckResult:
    name = Check.TRACKERS
    missing = [f"{one}; add --skip {name} if the image has it" for one in missing_packages(tracking)]
    return CheckResult(name, tuple(missing), f"{' and '.join(tracking.packages)} can be imported")


def _rows_check(spec: RLJobSpec, path: Path | None) -> CheckResult:
    name = Check.DATA_ROWS
    if spec.data.sources is not None:
        return not_checked(name, "several data sets are checked when the job starts")
    if path is None:
        return not_checked(name, f"name a copy of {spec.data.path or spec.data.hub!r} with --data")
    if not is_jsonl(spec.data, path):
        return not_checked(name, "Parquet files and Hugging Face data sets are read by longshore[runtime]")
    return CheckResult(name, tuple(data_mistakes(spec, path)), ROWS_ARE_RIGHT)


def is_jsonl(data: Data, path: Path) -> bool:
    """Return whether a copy of the job's data can be read without packages of the runtime."""
    return data.format is DataFormat.JSONL and path.suffix != ".parquet"


def model_mistakes(spec: RLJobSpec, directory: Path) -> list[str]:
    """Return what the job asks of a whole checkpoint that this cannot do."""
    config, max_context_tokens = config_of(directory), spec.model.max_context_tokens
    return [
        *limit_mistakes(
            config,
            spec.rollout.engine,
            max_context_tokens,
            has_accelerator=spec.workers.has_accelerator,
            field=_model_field(spec),
        ),
        *position_mistakes(config, max_context_tokens),
        *expert_mistakes(config, spec.trainer),
    ]


def data_mistakes(spec: RLJobSpec, path: Path) -> list[str]:
    """Return mistakes in a JSONL copy of the job's only data set: one per row, up to a line that is not JSON."""
    data, name = spec.data, spec.data.path or spec.data.hub or str(path)
    if data.format is not DataFormat.JSONL or len(data.each) != 1:
        return []
    if not path.is_file():
        return [f"data.path: {name!r} is not a file; set data.format to Parquet or HuggingFace for a directory"]
    mistakes = list(_row_mistakes(path, name, data.each[0], spec.reward.functions))
    if not mistakes:
        mistakes += _count_mistakes(path, name, spec)
        mistakes += unused_templates((fields, data.each[0]) for fields in _wanted(path, name, data))
    return mistakes


def _wanted(path: Path, name: str, data: Data) -> Iterator[dict[str, Any]]:
    return (fields for _, fields in jsonl_rows(path, name) if is_wanted(fields, data.where))


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


def _count_mistakes(path: Path, name: str, spec: RLJobSpec) -> Iterator[str]:
    num_rows = sum(1 for _ in _wanted(path, name, spec.data))
    num_train = num_rows - min(spec.data.held_out_prompts, num_rows // 2)
    if not num_rows:
        yield none_wanted(sum(1 for _ in jsonl_rows(path, name)), spec.data.each[0])
    elif (remark := few_prompts(num_train, spec.algorithm.prompts_per_step)) is not None:
        yield remark


def few_prompts(num_train: int, prompts_per_step: int) -> str | None:
    """Return a warning if one step trains on a prompt more than once; otherwise None."""
    if num_train >= prompts_per_step:
        return None
    return (
        f"data: {num_train} prompts to train on are fewer than algorithm.promptsPerStep ({prompts_per_step}): every "
        "step repeats some of them; add prompts, or lower promptsPerStep or data.heldOutPrompts"
    )
