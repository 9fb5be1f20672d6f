"""Build the view of a job. Pure."""

import math
from collections.abc import Sequence
from typing import Final

from longshore.api.runtime_status import RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore.page.redaction import without_secrets
from longshore.page.view import Curves, JobHead, JobPageView, RoundDigest
from longshore.policy.log_prob_mismatch import mismatch_limit

MAX_DIGESTS: Final = 100
"""Rounds whose lengths are shown one by one."""


def job_head(spec: RLJobSpec, name: str, namespace: str) -> JobHead:
    """Return the head of the page: name, settings and the like."""
    limit = mismatch_limit(
        spec.rollout,
        spec.trainer.dtype,
        engines_have_accelerators=spec.workers.has_accelerator,
        trainers_have_accelerators=spec.training_pods.has_accelerator,
    )
    return JobHead(
        name=name,
        namespace=namespace,
        strategy=spec.rollout.strategy.value,
        steps=spec.algorithm.steps,
        max_response_tokens=spec.algorithm.max_response_tokens,
        max_mismatch=limit if limit < math.inf else None,
        functions=tuple(function.name for function in spec.reward.functions),
        spec=without_secrets(spec.model_dump(mode="json", exclude_none=True)),
    )


def job_view(
    job: JobHead,
    runtime: RuntimeStatus | None,
    curves: Curves,
    digests: Sequence[RoundDigest],
    round_steps: Sequence[int],
    sample_steps: Sequence[int],
    held_out_steps: Sequence[int],
    written_s: float,
) -> JobPageView:
    """Return the part of the page that is sent at once."""
    if runtime is not None and runtime.data_types is not None:
        job = job.model_copy(update={"max_mismatch": runtime.data_types.max_log_prob_mismatch})
    return JobPageView(
        written_s=written_s,
        job=job,
        runtime=runtime,
        curves=curves,
        digests=tuple(digests),
        round_steps=tuple(round_steps),
        sample_steps=tuple(sample_steps),
        held_out_steps=tuple(held_out_steps),
    )
