"""What the GPU pods do, as the coordinator acknowledged it: the labels of the pods, and the GPUs by role."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from longshore.api import names
from longshore.api.names import Component, Role
from longshore.api.spec import RLJobSpec
from longshore.api.status import GpuCounts, RuntimeStatus
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


def gpu_counts(spec: RLJobSpec, pods: Iterable[PodView], attempt: int, acknowledged: Acknowledged | None) -> GpuCounts:
    """GPUs of pods that hold a node and have not ended, by what they do."""
    counts, judge = dict.fromkeys(Role, 0), 0
    gpus_of_judges = [one.pool.gpus_per_pod for one, _ in spec.reward.judge_pods if one.pool is not None]
    for pod in pods:
        if not pod.scheduled or pod.terminal:
            continue
        if pod.component is Component.TRAINER and spec.trainer_workers is not None:
            counts[Role.TRAINER] += spec.trainer_workers.gpus_per_pod
        elif pod.component is Component.WORKER:
            counts[_role(pod, attempt, acknowledged)] += spec.workers.gpus_per_pod
        elif pod.component is Component.JUDGE:
            judge += gpus_of_judges[pod.index] if pod.index < len(gpus_of_judges) else 0
    return GpuCounts(rollout=counts[Role.ROLLOUT], trainer=counts[Role.TRAINER], judge=judge)


def _role(pod: PodView, attempt: int, acknowledged: Acknowledged | None) -> Role:
    if acknowledged is not None and pod.attempt == attempt:
        return acknowledged.role(pod.index)
    return Role.TRAINER if pod.role == Role.TRAINER.value else Role.ROLLOUT
