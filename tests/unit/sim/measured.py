"""A profile as a job measures it, and the job."""

from typing import Any

from longshore.api.spec import RLJobSpec
from longshore.sim.profile import DecodePoint, PrefillPoint, Profile, Shape, Subject

SHAPE = Shape(
    num_parameters=7_620_000_000, num_layers=28, hidden_size=3584, kv_bytes_per_token=57_344, bytes_per_parameter=2
)


def subject(**changes: Any) -> Subject:
    """Qwen2.5-7B under another name."""
    given = {"model": "models/a", "model_fingerprint": "aa", "gpu": "NVIDIA H100 80GB HBM3", "setup": "s"}
    return Subject(**{**given, "shape": SHAPE, **changes})


def profile(*tp_sizes: int, kv_capacity_tokens: int = 400_000, **changes: Any) -> Profile:
    """Larger engines are quicker, and hold more than in proportion."""
    decode = [
        DecodePoint(
            tp_size=tp_size,
            num_running=num_running,
            context_tokens=num_running * context,
            step_s=(0.01 + 1e-5 * num_running + 2e-8 * num_running * context) / tp_size**0.6,
            measurements=6,
        )
        for tp_size in tp_sizes
        for num_running in (1, 16, 64, 255)
        for context in (100, 4_000)
    ]
    prefill = [
        PrefillPoint(tp_size=tp_size, prompt_tokens=2_048, tokens_per_s=30_000 * tp_size, measurements=3)
        for tp_size in tp_sizes
    ]
    capacity = {tp_size: kv_capacity_tokens * (2 * tp_size - 1) for tp_size in tp_sizes}
    figures = {"publish_s": 2.0, "regroup_s": 5.0, "measurements": {"publishSeconds": 4, "regroupSeconds": 2}}
    return Profile(
        **{
            "subject": subject(),
            "decode": decode,
            "prefill": prefill,
            "kv_capacity_tokens": capacity,
            **figures,
            **changes,
        }
    )


def spec(**rollout: Any) -> RLJobSpec:
    """A job on four GPUs."""
    return RLJobSpec.model_validate(
        {
            "model": {"path": "models/a", "maxContextTokens": 4_096},
            "data": {"path": "data/maths.jsonl"},
            "algorithm": {"steps": 10, "promptsPerStep": 8, "responsesPerPrompt": 4, "maxResponseTokens": 3_000},
            "reward": {"functions": [{"name": "maths", "kind": "Maths"}]},
            "rollout": rollout,
            "workers": {"replicas": 1, "gpusPerPod": 4},
            "storage": {"claimName": "data"},
        }
    )
