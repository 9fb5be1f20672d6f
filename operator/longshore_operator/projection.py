"""What the GPU pods do, as the coordinator acknowledged it: the labels of the pods, the condition `Repurposed`, and the
GPUs by role."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from longshore.api import names
from longshore.api.names import Component, Role
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore.api.status import Condition, ConditionStatus, ConditionType, GpuCounts, RLJobStatus
from longshore_operator.conditions import Fact
from longshore_operator.lifecycle import Progress
from longshore_operator.observed import PodView
from longshore_operator.plan import LabelPod


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What is true of the worker pods of an attempt."""

    trainer_pods: frozenset[int]
    tp_size: int
    """0: there are no engines yet."""

    def role(self, index: int) -> Role:
        """What a worker pod does."""
        return Role.TRAINER if index in self.trainer_pods else Role.ROLLOUT


def acknowledged(runtime: RuntimeStatus | None, progress: Progress) -> Acknowledged | None:
    """None while the coordinator of this attempt has not reported."""
    if runtime is None or runtime.attempt != progress.attempt or progress.finished or progress.suspended:
        return None
    return Acknowledged(frozenset(runtime.trainer_pods), runtime.tp_size)


def label_pods(pods: Iterable[PodView], attempt: int, acknowledged: Acknowledged | None) -> Iterator[LabelPod]:
    """Changes of labels that make the worker pods of the attempt say what they do."""
    if acknowledged is None:
        return
    for pod in pods:
        if pod.component is not Component.WORKER or pod.attempt != attempt or pod.deleting or pod.terminal:
            continue
        labels = {names.LABEL_ROLE: acknowledged.role(pod.index).value}
        if acknowledged.tp_size:
            labels[names.LABEL_TP_SIZE] = str(acknowledged.tp_size)
        shown = {names.LABEL_ROLE: pod.role, names.LABEL_TP_SIZE: pod.tp_size}
        if any(shown[name] != value for name, value in labels.items()):
            yield LabelPod(pod.name, pod.uid, labels)


def repurposed(status: RLJobStatus, acknowledged: Acknowledged | None) -> Fact | None:
    """True while pods train and others sample, False ever after; None in a job in which this never happened."""
    before = next((c for c in status.conditions if c.type == ConditionType.REPURPOSED.value), None)
    if acknowledged is not None and acknowledged.trainer_pods:
        return Fact(ConditionStatus.TRUE, "Acknowledged", _why(status, acknowledged.trainer_pods, before))
    if before is None:
        return None
    message = "the overlay is over: it holds for the rest of one round of one attempt"
    return Fact(ConditionStatus.FALSE, "OverlayEnded", message)


def gpu_counts(spec: RLJobSpec, pods: Iterable[PodView], attempt: int, acknowledged: Acknowledged | None) -> GpuCounts:
    """GPUs of pods that hold a node and have not ended, by what they do."""
    counts, judge = dict.fromkeys(Role, 0), 0
    num_judges = spec.reward.num_judge_pods
    for pod in pods:
        if not pod.scheduled or pod.terminal:
            continue
        if pod.component is Component.TRAINER and spec.trainer_workers is not None:
            counts[Role.TRAINER] += spec.trainer_workers.gpus_per_pod
        elif pod.component is Component.WORKER:
            counts[_role(pod, attempt, acknowledged)] += spec.workers.gpus_per_pod
        elif pod.component is Component.JUDGE:
            judge += _judge_gpus(spec, pod.index) if pod.index < num_judges else 0
    return GpuCounts(rollout=counts[Role.ROLLOUT], trainer=counts[Role.TRAINER], judge=judge)


def _judge_gpus(spec: RLJobSpec, index: int) -> int:
    function, _ = spec.reward.judge_pod(index)
    assert function.pool is not None, "a pool has pods"
    return function.pool.gpus_per_pod


def _why(status: RLJobStatus, trainer_pods: Iterable[int], before: Condition | None) -> str:
    """The reason of the assignment that was carried out; a later one says nothing about it."""
    if status.runtime is not None and status.runtime.applied_epoch == status.assignment.epoch:
        return status.assignment.reason
    if before is not None and before.status is ConditionStatus.TRUE:
        return before.message
    return f"in training for the rest of the round: worker pods {', '.join(map(str, sorted(trainer_pods)))}"


def _role(pod: PodView, attempt: int, acknowledged: Acknowledged | None) -> Role:
    if acknowledged is not None and pod.attempt == attempt:
        return acknowledged.role(pod.index)
    return Role.TRAINER if pod.role == Role.TRAINER.value else Role.ROLLOUT
