"""Predict the periods of `benchmarks.period` with the simulator, in the figures of their steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.period import Step, totals
from benchmarks.workload import ResponseTokens
from longshore.api.spec import RLJobSpec
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.policy.round_policy import BatchShape
from longshore.sim.hardware import GpuModel, ModelShape
from longshore.sim.job import GpuPool, Rewards, SimJob, TrainerLayout, Training
from longshore.sim.lengths import LengthModel
from longshore.sim.profile import DecodePoint, Profile
from longshore.sim.result import SimResult, StepRecord, Work
from longshore.sim.rewards import MathsRewards
from longshore.sim.simulate import simulate

KV_BYTES_PER_TOKEN: Final = 1024
"""Bytes of the tiny model's KV cache per token: 2 layers, 2 KV heads of 32 values, keys and values of 4 bytes."""

_CORE: Final = GpuModel("CPU core", 8e9, 1e10, 5e10, 1e10)
_TINY: Final = ModelShape("tiny", 3.6e5, 2, 128, KV_BYTES_PER_TOKEN, bytes_per_parameter=4)
"""Model and, above, processor with plausible figures; the profile replaces all that is computed from them."""

_UNIT_STEPS: Final = Profile(
    decode=[DecodePoint(tp_size=1, num_running=1, context_tokens=tokens, step_s=1.0) for tokens in (0, 1_000_000)],
    prefill_tokens_per_s=1e15,
    kv_capacity_tokens={1: 1_000_000},
)
"""Profile in which only decode steps take time, a second each: a rollout takes as many seconds as steps."""


@dataclass(frozen=True)
class WorkloadLengths:
    """The lengths of a workload, as the simulator asks for them."""

    lengths: ResponseTokens
    num_prompt_tokens: Sequence[int]
    """Number of prompt tokens, by row of the data."""

    def response_tokens(self, response: ResponseId) -> int:
        return self.lengths.of(response)

    def episode(self, response: ResponseId) -> None:
        return None

    def prompt_tokens(self, draw: Draw) -> int:
        return self.num_prompt_tokens[draw.index]

    def hardness(self, draw: Draw) -> float:
        return self.lengths.deviate(draw)

    @property
    def max_tokens(self) -> int:
        return self.lengths.max


def predict(
    spec: RLJobSpec, lengths: LengthModel, profile: Profile, num_rounds: int, *, num_prompts: int
) -> dict[str, float]:
    """Return the figures of one period of a job with so many prompts."""
    job = _job(spec, lengths, profile, num_prompts)
    result = simulate(job, num_rounds, drains=True)
    counted = simulate(replace(job, profile=_UNIT_STEPS), num_rounds, drains=True)
    steps = [
        _step(result, record, num_decode_steps=round(other.rollout_s))
        for record, other in zip(result.steps, counted.steps, strict=True)
    ]
    return totals(steps)


def _job(spec: RLJobSpec, lengths: LengthModel, profile: Profile, num_prompts: int) -> SimJob:
    algorithm, cores = spec.algorithm, GpuPool(_CORE, spec.workers.replicas, gpus_per_pod=1)
    is_pipelined = spec.rollout.is_pipelined
    return SimJob(
        rollout=spec.rollout,
        shape=BatchShape(algorithm.prompts_per_step, algorithm.responses_per_prompt),
        model=_TINY,
        gpus=cores,
        lengths=lengths,
        trainer=TrainerLayout(
            training=Training.PIPELINED if is_pipelined else Training.AFTER_ROUND,
            pool=cores if is_pipelined else None,
            groups_per_update=algorithm.groups_per_update,
        ),
        rewards=Rewards(MathsRewards(per_sample_s=0.0)),
        profile=profile,
        trainer_profile=profile,
        num_prompts=num_prompts,
        seed=algorithm.seed,
    )


def _step(result: SimResult, record: StepRecord, num_decode_steps: int) -> Step:
    end_s = record.start_s + record.rollout_s
    spans = [span for span in result.spans if span.work is Work.ROLLOUT and record.start_s <= span.start_s < end_s]
    busy_s = sum(min(span.end_s, end_s) - span.start_s for span in spans)
    num_engines = len({span.gpu for span in result.spans if span.work is Work.ROLLOUT})
    return {
        "samples": record.num_trained_samples,
        "tokens": record.num_trained_tokens,
        "rollout_s": record.rollout_s,
        "step_s": record.step_s,
        "publish_s": record.publish_s,
        "busy_share": busy_s / (num_engines * record.rollout_s),
        "decode_steps": num_decode_steps,
        "off_policy_token_share": record.off_policy_share,
        "trainer_compute_s": record.trainer_compute_s,
        "first_dispatch_s": record.first_dispatch_s,
    }
