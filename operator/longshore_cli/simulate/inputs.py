"""What a simulation needs, from files and options: manifest, model, GPU, lengths, profile. Every mistake is refused."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import yaml
from pydantic import ValidationError

from longshore.api import names
from longshore.api.rljob import RLJob
from longshore.api.spec import RLJobSpec
from longshore.sim.hardware import Gpu, ModelShape, gpu_named, model_named
from longshore.sim.lengths import LengthModel, LognormalLengths
from longshore.sim.profile import Profile
from longshore.sim.traces import Trace, csv_trace, jsonl_trace
from longshore_cli import format as fmt
from longshore_cli import jobs
from longshore_cli.errors import CliError
from longshore_cli.simulate.errors import BadInput, sentence

DEFAULT_GPU: Final = "H100"
_TINY: Final = ModelShape("Tiny", num_parameters=328e3, num_layers=2, hidden_size=128, kv_bytes_per_token=512)
"""The built-in model."""
_MAX_TO_MEDIAN: Final = 28
"""Longest over median response; RollPacker, section 1: 25 to 32."""
_MAX_TO_P75: Final = 16
"""Longest over third quartile: RollPacker, section 2.2: 755 to 1,100 tokens of 16,384."""
_MEAN_PROMPT_TOKENS: Final = 256

Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    file: Path
    model: str | None = None
    gpu_type: str | None = None
    lengths: Path | None = None
    profile: Path | None = None


@dataclass(frozen=True)
class Inputs:
    """What all simulations of a command share."""

    name: str
    spec: RLJobSpec
    model: ModelShape
    gpu: Gpu
    lengths: LengthModel
    profile: Profile
    trace: Trace | None = None
    """Where the lengths are recorded ones."""
    assumes_gpu: bool = False
    """Whether nobody said which GPU it is."""


def read(options: Options) -> Inputs:
    """Read and check everything; BadInput for the first mistake."""
    job = read_job(options.file)
    spec = job.spec
    gpu = _known(gpu_named, options.gpu_type or DEFAULT_GPU, "--gpu-type")
    trace = read_trace(options.lengths, spec) if options.lengths else None
    lengths = trace.lengths if trace else default_lengths(spec)
    return Inputs(
        name=str(job.metadata["name"]),
        spec=spec,
        model=_model(spec, options.model),
        gpu=gpu,
        lengths=lengths,
        profile=read_profile(options.profile) if options.profile else Profile(),
        trace=trace,
        assumes_gpu=options.gpu_type is None,
    )


def read_job(path: Path) -> RLJob:
    """The only RLJob of a manifest, checked as the API server would check it."""
    try:
        documents = jobs.read_manifest(path)
    except CliError as error:
        raise BadInput(error.message, error.fix) from error
    except (UnicodeDecodeError, OSError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    found = [document for document in documents if document["kind"] == names.KIND]
    if len(found) != 1:
        raise BadInput(f"{path} holds {fmt.count(len(found), 'RLJob')}; exactly one is simulated.")
    stored = {key: value for key, value in found[0].items() if key != "status"}
    if len(str(stored["metadata"]["name"])) > names.MAX_JOB_NAME_LENGTH:
        raise BadInput(f"{path}: metadata.name: at most {names.MAX_JOB_NAME_LENGTH} characters")
    try:
        # As JSON: the API server does not turn texts into numbers either.
        return RLJob.model_validate_json(json.dumps(stored, default=str), strict=True)
    except ValidationError as error:
        raise BadInput(f"{path}: {sentence(error)}") from error


def read_trace(path: Path, spec: RLJobSpec) -> Trace:
    """Lengths of a CSV or JSONL file."""
    parsers = {".csv": csv_trace, ".jsonl": jsonl_trace}
    if path.suffix not in parsers:
        raise BadInput(f"--lengths: {path} is neither a .csv nor a .jsonl file")
    algorithm = spec.algorithm
    try:
        return parsers[path.suffix](_text(path), algorithm.max_response_tokens, algorithm.responses_per_prompt)
    except ValueError as error:
        raise BadInput(f"{path}: {error}") from error


def read_profile(path: Path) -> Profile:
    """Measured costs, as YAML or JSON."""
    try:
        found = yaml.safe_load(_text(path))
    except yaml.YAMLError as error:
        raise BadInput(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    try:
        return Profile.model_validate_json(json.dumps(found, default=str), strict=True)
    except ValidationError as error:
        raise BadInput(f"{path}: {sentence(error)}") from error


def default_lengths(spec: RLJobSpec) -> LognormalLengths:
    """A long tail up to maxResponseTokens, where nothing is known of the lengths."""
    longest = spec.algorithm.max_response_tokens
    room = spec.model.max_context_tokens - longest
    prompt_tokens = max(1, min(_MEAN_PROMPT_TOKENS, spec.data.max_prompt_tokens, room))
    return LognormalLengths.from_quantiles(
        longest / _MAX_TO_MEDIAN, longest / _MAX_TO_P75, longest, mean_prompt_tokens=prompt_tokens
    )


def _model(spec: RLJobSpec, name: str | None) -> ModelShape:
    if name is not None:
        return _known(model_named, name, "--model")
    if spec.model.builtin is not None:
        return _TINY
    raise BadInput(
        f"The manifest names a path ({spec.model.path}) but no size of the model.",
        "Add --model, such as --model Qwen2.5-7B or --model 13B.",
    )


def _known(named: Callable[[str], Thing], name: str, option: str) -> Thing:
    try:
        return named(name)
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from error


def _text(path: Path) -> str:
    if not path.is_file():
        raise BadInput(f"There is no file {path}.")
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
