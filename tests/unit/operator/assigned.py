"""Jobs with elastic GPUs, and what their coordinators report."""

from typing import Any

from longshore.api.round_status import (
    PodLoad,
    RepurposingBenefit,
    RolloutLoad,
    RoundKind,
    RoundStatus,
    RoundSummary,
)
from longshore.api.runtime_status import RuntimeStatus
from tests.unit.operator.model import Cluster

STREAMED = {"handover": "Streamed"}
ADAPTIVE = {"engine": {"parallelism": "Adaptive"}}
FOUR_PODS = {"replicas": 4, "gpusPerPod": 2}
CAPACITY_TOKENS = 1_000
PAYS = RepurposingBenefit(rollout_longer_s=1.0, training_shorter_s=3.0, wanted=True)
WHY = (
    "4 of 8 GPUs to training at 30 %: projected KV peak 50 %; the step is expected to end 2 s sooner (rollout 1 s "
    "longer, training 3 s shorter)"
)
COSTS = RepurposingBenefit(rollout_longer_s=0.8, training_shorter_s=0.42, wanted=False)


def job(rollout: dict[str, Any], workers: dict[str, Any] = FOUR_PODS, **spec: Any) -> Cluster:
    """A job with all its pods ready."""
    cluster = Cluster(spec={"rollout": rollout, "workers": workers, **spec})
    cluster.reconcile_until_stable()
    assert cluster.status.assignment.epoch == 1
    return cluster


def load(peak_tokens: int = 1_000, busy: tuple[int, ...] = (40, 30, 20, 10), gpus: int = 2) -> RolloutLoad:
    """Engines in as many pods as `busy` has tokens for."""
    pods = [
        PodLoad(pod=pod, gpus=gpus, kv_capacity_tokens=CAPACITY_TOKENS, running_tokens=tokens)
        for pod, tokens in enumerate(busy)
    ]
    return RolloutLoad(projected_kv_peak_tokens=peak_tokens, pods=pods)


def at_milestone(number: int = 1, attempt: int = 1, fraction: float = 0.3, **more: Any) -> RuntimeStatus:
    """What the coordinator tells while a round runs and pods may be repurposed."""
    this_round = RoundStatus(
        number=number, kind=RoundKind.SHORT, fraction_finished=fraction, load=more.pop("load", load())
    )
    known: dict[str, Any] = {"repurposing": {RoundKind.SHORT: PAYS}}
    return RuntimeStatus(attempt=attempt, step=number - 1, round=this_round, **known | more)


def after_rounds(*preemptions: int, first: int = 1, kind: RoundKind = RoundKind.SHORT, **more: Any) -> RuntimeStatus:
    """What the coordinator tells when rounds are over."""
    rounds = [RoundSummary(number=first + at, kind=kind, preemptions=count) for at, count in enumerate(preemptions)]
    known: dict[str, Any] = {"attempt": 1, "tp_sizes": [1, 2]}
    return RuntimeStatus(**{**known, **more}, step=first + len(rounds) - 1, recent_rounds=rounds[-16:])


def reasons(cluster: Cluster) -> list[str]:
    return [event.reason for event in cluster.events if event.reason not in ("Started", "Suspended", "Resumed")]
