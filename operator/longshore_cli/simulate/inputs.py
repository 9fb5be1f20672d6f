"""What a simulation needs, from files and options: manifest, model, GPU, lengths, profile. Every mistake is refused."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

import yaml
from pydantic import ValidationError

from longshore.api.mistakes import mistakes, sentence
from longshore.api.rljob import RLJob
from longshore.api.rollout import EngineDtype
from longshore.api.spec import RLJobSpec
from longshore.record.lengths import RecordedLengths
from longshore.sim.hardware import GpuModel, ModelShape, gpu_described, gpu_named, known_model, model_named
from longshore.sim.job import default_lengths, mean_prompt_tokens
from longshore.sim.lengths import LengthModel
from longshore.sim.profile import Profile, Subject
from longshore.sim.traces import LengthTrace, csv_trace, jsonl_trace, recorded_trace
from longshore_cli.simulate.errors import BadInput, BadSpec
from longshore_cli.simulate.prompts import estimated_prompt_tokens
from longshore_client import jobs
from longshore_client.errors import ClientError
from longshore_kube.resources import Json

DEFAULT_GPU: Final = "H100"
_TINY: Final = ModelShape("Tiny", num_parameters=328e3, num_layers=2, hidden_size=128, kv_bytes_per_token=512)
"""The built-in model."""
_SAME_SIZE: Final = 0.1
"""Models whose numbers of parameters differ by a smaller share may be the same: a size is given in round figures."""

Thing = TypeVar("Thing")


@dataclass(frozen=True)
class RecordedJob:
    """What a job of the cluster has recorded."""

    job: str
    manifest: Json
    lengths: RecordedLengths
    profile: str | None
    """The profile that the job has measured, as JSON; None: there is none."""


@dataclass(frozen=True)
class SimulateOptions:
    """What the command line says; `file` or `source` is there."""

    file: Path | None
    model: str | None = None
    gpu_type: str | None = None
    lengths: Path | None = None
    profile: Path | None = None
    source: RecordedJob | None = None
    data: Path | None = None
    """Copy of the job's data on this machine."""

    @property
    def shown_profile(self) -> str:
        """Name of the profile in messages."""
        return f"The profile of {self.source.job}" if self.profile is None and self.source else str(self.profile)


@dataclass(frozen=True)
class Inputs:
    """What all simulations of a command share."""

    name: str
    spec: RLJobSpec
    model: ModelShape
    gpu: GpuModel
    lengths: LengthModel
    profile: Profile
    prompt_tokens: int
    """Mean length of a prompt, where the trace has none."""
    data: Path | None = None
    """Where that was measured."""
    trace: LengthTrace | None = None
    """Where the lengths are recorded ones."""
    source: RecordedJob | None = None
    """The job that has recorded them."""
    assumes_gpu: bool = False
    """Whether the kind of GPU is only assumed."""


def read(options: SimulateOptions) -> Inputs:
    """Read and check everything; BadInput for the first mistake."""
    job = read_job(options.file, "simulated") if options.file is not None else _job_of(options.source)
    spec = job.spec
    profile = _profile(options)
    measured = profile.subject
    gpu = _gpu(options.gpu_type, measured)
    model = _in_engine(_model(spec, options.model, measured), spec.rollout.engine.dtype, measured)
    if measured is not None:
        _require_measured(measured, spec, model, gpu, options)
    prompt_tokens = mean_prompt_tokens(spec) if options.data is None else estimated_prompt_tokens(options.data, spec)
    trace = _trace(options, spec, prompt_tokens)
    lengths = trace.lengths if trace else default_lengths(spec, prompt_tokens)
    return Inputs(
        name=str(job.metadata["name"]),
        spec=spec,
        model=model,
        gpu=gpu,
        lengths=lengths,
        profile=profile,
        prompt_tokens=prompt_tokens,
        data=options.data,
        trace=trace,
        source=options.source,
        assumes_gpu=options.gpu_type is None and measured is None,
    )


def read_job(path: Path, verb: str) -> RLJob:
    """Return the only RLJob of a manifest, checked as the API server would check it; `verb`: what is done to it."""
    try:
        found = jobs.only_job(jobs.read_manifest(path), path, verb)
    except ClientError as error:
        raise BadInput(error.message, error.fix) from error
    except (UnicodeDecodeError, OSError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    return _checked(found, str(path))


def _job_of(source: RecordedJob | None) -> RLJob:
    assert source is not None, "there is no file"
    return _checked(source.manifest, f"RLJob {source.job}")


def _checked(document: Json, where: str) -> RLJob:
    stored = {key: value for key, value in document.items() if key != "status"}
    try:
        # As JSON: the API server does not turn texts into numbers either.
        return RLJob.model_validate_json(json.dumps(stored, default=str), strict=True)
    except ValidationError as error:
        found = [text for _, text in mistakes(error, model=RLJob)]
        raise BadSpec(f"{where}: {sentence(error, model=RLJob)}", found) from error


def _trace(options: SimulateOptions, spec: RLJobSpec, prompt_tokens: int) -> LengthTrace | None:
    """Return recorded lengths; where the trace has no lengths of prompts, these are as long as without one."""
    if options.lengths is not None:
        trace = read_trace(options.lengths, spec)
    elif options.source is None:
        return None
    elif options.source.lengths.groups:
        trace = recorded_trace(options.source.lengths.groups, spec.algorithm.max_response_tokens)
    else:
        raise BadInput(f"--from: no response of {options.source.job} has finished in the recorded rounds.")
    if trace.lengths.prompts and options.data is not None:
        raise BadInput(f"--data: {options.lengths} has the lengths of prompts already.", "Leave --data out.")
    if not spec.environments:
        trace = replace(trace, lengths=trace.lengths.without_episodes())
    return trace if trace.lengths.prompts else replace(trace, lengths=replace(trace.lengths, prompts=(prompt_tokens,)))


def _profile(options: SimulateOptions) -> Profile:
    """Return the one that is named, or else that of the job which has recorded lengths, if it has measured one."""
    if options.profile is not None:
        return read_profile(options.profile)
    if options.source is not None and options.source.profile is not None:
        return _parsed_profile(options.source.profile, options.shown_profile)
    return Profile()


def read_trace(path: Path, spec: RLJobSpec) -> LengthTrace:
    """Return the lengths of a CSV or JSONL file."""
    parsers = {".csv": csv_trace, ".jsonl": jsonl_trace}
    if path.suffix not in parsers:
        raise BadInput(f"--lengths: {path} is neither a .csv nor a .jsonl file")
    algorithm = spec.algorithm
    try:
        return parsers[path.suffix](path, algorithm.max_response_tokens, algorithm.responses_per_prompt)
    except FileNotFoundError as error:
        raise BadInput(f"There is no file {path}.") from error
    except (UnicodeDecodeError, OSError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise BadInput(str(error)) from error


def read_profile(path: Path) -> Profile:
    """Return the measured costs, as YAML or JSON."""
    return _parsed_profile(_text(path), str(path))


def _parsed_profile(text: str, name: str) -> Profile:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(f"{name} is no YAML: {' '.join(str(error).split())}") from error
    try:
        return Profile.model_validate_json(json.dumps(found, default=str), strict=True)
    except ValidationError as error:
        raise BadInput(f"{name}: {sentence(error)}") from error


def _gpu(name: str | None, measured: Subject | None) -> GpuModel:
    if name is None and measured is not None:
        return gpu_described(measured.gpu)
    return _known(gpu_named, name or DEFAULT_GPU, "--gpu-type")


def _model(spec: RLJobSpec, name: str | None, measured: Subject | None) -> ModelShape:
    if name is not None:
        return _known(model_named, name, "--model")
    if measured is not None:
        return measured.model_shape
    if spec.model.builtin is not None:
        return _TINY
    if (known := known_model(spec.model.hub or spec.model.path or "")) is not None:
        return known
    raise BadInput(
        f"The manifest names a {'path' if spec.model.hub is None else 'repository'} "
        f"({spec.model.path or spec.model.hub}) but no size of the model.",
        "Add --model, such as --model Qwen2.5-7B or --model 13B, or a profile of it with --profile.",
    )


def _in_engine(model: ModelShape, dtype: EngineDtype, measured: Subject | None) -> ModelShape:
    """Return the sizes that weights and KV cache have in engines of this type."""
    if dtype is not EngineDtype.FLOAT32 or (measured is not None and model == measured.model_shape):
        return model
    return replace(
        model, bytes_per_parameter=2 * model.bytes_per_parameter, kv_bytes_per_token=2 * model.kv_bytes_per_token
    )


def _require_measured(
    measured: Subject, spec: RLJobSpec, model: ModelShape, gpu: GpuModel, options: SimulateOptions
) -> None:
    """Raise unless the profile is for this model and kind of GPU."""
    fix = "Measure a profile of this job with `longshore profile`, or leave --profile out."
    wanted = spec.model.builtin or spec.model.hub or spec.model.path or ""
    if PurePosixPath(wanted).name != PurePosixPath(measured.model).name:
        raise BadInput(
            f"{options.shown_profile} is of the model {measured.model}, but the manifest names {wanted}.", fix
        )
    if abs(model.num_parameters / measured.shape.num_parameters - 1) > _SAME_SIZE:
        size, other = (f"{number / 1e9:.3g}B" for number in (measured.shape.num_parameters, model.num_parameters))
        raise BadInput(
            f"{options.shown_profile} is of a model of {size} parameters, but --model names one of {other}.", fix
        )
    if gpu_described(measured.gpu).name != gpu.name:
        raise BadInput(f"{options.shown_profile} is of {measured.gpu}, but --gpu-type names {gpu.name}.", fix)


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
