"""Measured costs, which replace the modelled ones wherever they are given."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import fmean, harmonic_mean
from typing import Final

from pydantic import Field

from longshore.api.base import ApiModel
from longshore.sim.hardware import ModelShape

CPU: Final = "CPU"
"""Name of the accelerator where there is none."""


class ProfileMismatch(ValueError):
    """A profile of something else: one sentence that names both."""


class Shape(ApiModel):
    """Sizes of a model, from its configuration and its files."""

    num_parameters: int = Field(ge=1)
    num_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    kv_bytes_per_token: int = Field(ge=1)
    """Keys and values of all layers, in the engine's type."""
    bytes_per_parameter: int = Field(ge=1)
    """In the engine."""


class Subject(ApiModel):
    """What a profile was measured with; it holds for that alone."""

    model: str
    """Name of the model in the job: a path in its storage, or the name of a built-in model."""
    model_fingerprint: str
    """Hash of the model's configuration."""
    gpu: str
    """Name of the GPU by its driver, or CPU."""
    setup: str
    """Hash of the job's options for engines, trainers and their pods."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of the programs that were measured."""
    shape: Shape

    @property
    def model_shape(self) -> ModelShape:
        """Shape of the model as the simulator wants it."""
        return ModelShape(name=self.model, **self.shape.model_dump(by_alias=False))

    def require(self, other: "Subject") -> None:
        """Raise ProfileMismatch unless model and accelerator are those of `other`."""
        if (self.model_fingerprint, self.gpu) != (other.model_fingerprint, other.gpu):
            raise ProfileMismatch(f"the profile is of {self._described} and the job has {other._described}")

    @property
    def _described(self) -> str:
        return f"model {self.model} (configuration {self.model_fingerprint}) on {self.gpu}"


class DecodePoint(ApiModel):
    """One measured decode step of an engine."""

    tp_size: int = Field(ge=1)
    """GPUs of the engine."""
    num_running: int = Field(ge=1)
    """Requests in the batch."""
    context_tokens: int = Field(ge=0)
    """Prompt and response tokens of all of them, that is, entries in the KV cache."""
    step_s: float = Field(gt=0, alias="stepSeconds")
    """Time of the step: the median."""
    measurements: int | None = Field(default=None, ge=1)
    """How many it is the median of."""


class PrefillPoint(ApiModel):
    """How fast an engine computes prompts of one length, many at once: as fast as it recomputes what migrates to it."""

    tp_size: int = Field(ge=1)
    """GPUs of the engine."""
    prompt_tokens: int = Field(ge=1)
    """Tokens of each prompt."""
    tokens_per_s: float = Field(gt=0, alias="tokensPerSecond")
    """Tokens per second of the engine: the median."""
    measurements: int | None = Field(default=None, ge=1)
    """How many it is the median of."""


class JudgePoint(ApiModel):
    """A colocated judge reads a question of one length, the response in it, and writes its verdict."""

    function: str
    """Name of the reward function."""
    question_tokens: int = Field(ge=1)
    """What it reads, in its own tokens."""
    seconds: float = Field(gt=0)
    """The median."""
    peak_bytes: int | None = Field(default=None, ge=0)
    """Most GPU memory that the judge held at once; unset without GPUs."""
    measurements: int | None = Field(default=None, ge=1)
    """How many it is the median of."""


class Profile(ApiModel):
    """Measurements of one model on one kind of GPU; what is unset is modelled."""

    subject: Subject | None = None
    """What was measured; unset: whatever the user says."""
    decode: list[DecodePoint] = Field(default_factory=list)
    """Decode steps, best with two context sizes for each batch size."""
    prefill: list[PrefillPoint] = Field(default_factory=list)
    """Prompts, by tensor-parallel size and length."""
    step_overhead_s: float | None = Field(default=None, ge=0, alias="stepOverheadSeconds")
    """Where decode steps are not measured: what a step takes besides reading and computing."""
    request_overhead_s: float | None = Field(default=None, ge=0, alias="requestOverheadSeconds")
    """Where decode steps are not measured: what each request of a batch adds to that."""
    prefill_tokens_per_s: float | None = Field(default=None, gt=0, alias="prefillTokensPerSecond")
    """Prompt tokens that one GPU of an engine computes per second, where there is no `prefill`."""
    kv_capacity_tokens: dict[int, int] = Field(default_factory=dict)
    """Tokens that the KV cache of an engine holds, by tensor-parallel size."""
    train_tokens_per_s: float | None = Field(default=None, gt=0, alias="trainTokensPerSecond")
    """Tokens that one GPU of the trainer takes through forward and backward per second."""
    optimizer_s: float | None = Field(default=None, ge=0, alias="optimizerSeconds")
    """Gradient reduction and optimizer step."""
    publish_s: float | None = Field(default=None, ge=0, alias="publishSeconds")
    """From the end of an update until the engines have the weights."""
    to_training_s: float | None = Field(default=None, ge=0, alias="toTrainingSeconds")
    """From an idle engine to a trainer that computes, on the same GPUs."""
    to_rollout_s: float | None = Field(default=None, ge=0, alias="toRolloutSeconds")
    """From an idle trainer to an engine that samples, on the same GPUs."""
    migration_s: float | None = Field(default=None, ge=0, alias="migrationSeconds")
    """From the order to stop a response that has just begun until it has gone on by a token on another engine: what a
    migration costs besides its recomputation."""
    regroup_s: float | None = Field(default=None, ge=0, alias="regroupSeconds")
    """Rebuilding engines with another tensor-parallel size."""
    judge: list[JudgePoint] = Field(default_factory=list)
    """Colocated judges, by length."""
    measurements: dict[str, int] = Field(default_factory=dict)
    """How many measurements each of the other figures is the median of, by the name of its field (and the size)."""

    @property
    def tp_sizes(self) -> tuple[int, ...]:
        """Tensor-parallel sizes whose decode steps were measured."""
        return tuple(sorted(self._fits))

    def prefill_of_engine(self, tp_size: int) -> float | None:
        """Return the tokens per second of an engine over prompts of all measured lengths, alike in tokens.

        A size that was not measured has the rate of the others per GPU.
        """
        rates = [point.tokens_per_s for point in self.prefill if point.tp_size == tp_size]
        if rates:
            return harmonic_mean(rates)
        if self.prefill:
            return tp_size * harmonic_mean([point.tokens_per_s / point.tp_size for point in self.prefill])
        return None if self.prefill_tokens_per_s is None else tp_size * self.prefill_tokens_per_s

    @cached_property
    def _fits(self) -> Mapping[int, "_DecodeFit"]:
        points = defaultdict(list)
        for point in self.decode:
            points[point.tp_size].append(point)
        return {tp_size: _DecodeFit(group) for tp_size, group in points.items()}

    def decode_step(self, num_running: int, tp_size: int) -> tuple[float, float | None] | None:
        """Return the seconds of a step without any context, and per context token.

        The latter is None where all batches have one context size.
        """
        fit = self._fits.get(tp_size)
        return None if fit is None else (fit.base_s(num_running), fit.per_context_token_s)


class _DecodeFit:
    """step = base(batch) + slope * context: one slope for all batch sizes, base interpolated between them."""

    def __init__(self, points: Sequence[DecodePoint]) -> None:
        batches: dict[int, list[DecodePoint]] = defaultdict(list)
        for point in points:
            batches[point.num_running].append(point)
        means = {
            size: (fmean(point.context_tokens for point in batch), fmean(point.step_s for point in batch))
            for size, batch in batches.items()
        }
        centred = [
            (point.context_tokens - means[point.num_running][0], point.step_s - means[point.num_running][1])
            for point in points
        ]
        spread = sum(context**2 for context, _ in centred)
        self.per_context_token_s = (
            max(0.0, sum(context * step for context, step in centred) / spread) if spread > 0 else None
        )
        slope = self.per_context_token_s or 0.0
        self._sizes = sorted(means)
        self._bases = [max(0.0, means[size][1] - slope * means[size][0]) for size in self._sizes]

    def base_s(self, num_running: int) -> float:
        """Interpolate linearly between the measured batch sizes, and beyond the last two; flat below the first."""
        sizes, bases = self._sizes, self._bases
        if num_running <= sizes[0] or len(sizes) == 1:
            return bases[0]
        right = min(bisect_left(sizes, num_running), len(sizes) - 1)
        share = (num_running - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        return max(bases[0], bases[right - 1] + share * (bases[right] - bases[right - 1]))
