"""Show what the GPU pods do, as the coordinator acknowledged it.

It is shown by the labels of the pods, the condition `Repurposed`, and the number of GPUs by role.
"""

from collections.abc import Iterator
from itertools import islice

from longshore.api import names
from longshore.api.names import Component, Role
from longshore.api.reasons import EventReason, RepurposedReason
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore.api.status import Condition, ConditionStatus, ConditionType, GpuCounts, RLJobStatus
from longshore_operator.context import Context
from longshore_operator.identity import Identity
from longshore_operator.plan import POD_BATCH, Event, Fact, LabelPod, Outcome
from longshore_operator.pod_view import PodView


def reconcile_roles(context: Context) -> Outcome:
    """Decide roles only by what the coordinator of this attempt has reported, and while the job has pods.

    Labels by which other objects find the pods of the job are restored at all times.
    """
    runtime = context.runtime if context.progress.active else None
    labels = tuple(islice(_labels(context, runtime), POD_BATCH + 1))
    fact = None if context.progress.finished else _repurposed(context.job.status, runtime)
    return Outcome(
        actions=labels[:POD_BATCH],
        events=_events(context.job.status, runtime, fact),
        conditions={ConditionType.REPURPOSED: fact},
        status=RLJobStatus(gpus=_gpu_counts(context, runtime)),
        requeue_at=context.now if len(labels) > POD_BATCH else None,
    )


def _labels(context: Context, runtime: RuntimeStatus | None) -> Iterator[LabelPod]:
    """Yield changes of labels: those that were edited, and those by which worker pods say what they do."""
    uid = Identity.of(context.job).uid
    for pod in context.observed.pods:
        edited = dict(pod.wrong_labels) if pod.owner_uid == uid else {}
        role = _role_labels(context, runtime, pod)
        if edited or role:
            yield LabelPod(pod.name, pod.uid, edited | role, is_repair=bool(edited))


def _role_labels(context: Context, runtime: RuntimeStatus | None, pod: PodView) -> dict[str, str]:
    """Return the labels that make a worker pod of the attempt say what it does; empty: it does."""
    is_worker = pod.component is Component.WORKER and pod.attempt == context.progress.attempt
    if runtime is None or not is_worker or pod.deleting or pod.terminal:
        return {}
    labels = {names.LABEL_ROLE: _role(pod.index in frozenset(runtime.trainer_pods)).value}
    if runtime.tp_size:
        labels[names.LABEL_TP_SIZE] = str(runtime.tp_size)
    shown = {names.LABEL_ROLE: pod.role, names.LABEL_TP_SIZE: pod.tp_size}
    return labels if any(shown[name] != value for name, value in labels.items()) else {}


def _repurposed(status: RLJobStatus, runtime: RuntimeStatus | None) -> Fact | None:
    """Return the condition: True while pods train and others sample, then False; None before the first time."""
    before = status.condition(ConditionType.REPURPOSED)
    if runtime is not None and runtime.trainer_pods:
        return Fact(True, RepurposedReason.ACKNOWLEDGED, _why(status, runtime, before))
    if before is None:
        return None
    message = "the overlay is over: it holds for the rest of one round of one attempt"
    return Fact(False, RepurposedReason.OVERLAY_ENDED, message)


def _why(status: RLJobStatus, runtime: RuntimeStatus, before: Condition | None) -> str:
    """Return the reason of the assignment that was carried out, not that of a later one."""
    if runtime.applied_epoch == status.assignment.epoch:
        return status.assignment.reason
    if before is not None and before.status is ConditionStatus.TRUE:
        return before.message
    pods = ", ".join(str(pod) for pod in sorted(set(runtime.trainer_pods)))
    return f"in training for the rest of the round: worker pods {pods}"


def _events(status: RLJobStatus, runtime: RuntimeStatus | None, fact: Fact | None) -> tuple[Event, ...]:
    """Return an event when pods begin to train."""
    before = status.condition(ConditionType.REPURPOSED)
    was_repurposed = before is not None and before.status is ConditionStatus.TRUE
    if runtime is None or fact is None or not fact.holds or was_repurposed:
        return ()
    return (Event("Normal", EventReason.REPURPOSED, fact.message, f"epoch-{runtime.applied_epoch}"),)


def _gpu_counts(context: Context, runtime: RuntimeStatus | None) -> GpuCounts:
    """Return the GPUs of pods that hold a node and have not ended, by what they do."""
    counts, judge, spec = dict.fromkeys(Role, 0), 0, context.job.spec
    num_judges = spec.reward.num_judge_pods
    trainers = frozenset(runtime.trainer_pods) if runtime is not None else frozenset()
    for pod in context.observed.pods:
        if not pod.scheduled or pod.terminal:
            continue
        if pod.component is Component.TRAINER and spec.trainer_workers is not None:
            counts[Role.TRAINER] += spec.trainer_workers.gpus_per_pod
        elif pod.component is Component.WORKER:
            # The label speaks for a pod of which no coordinator reports.
            is_reported = runtime is not None and pod.attempt == runtime.attempt
            trains = pod.index in trainers if is_reported else pod.role == Role.TRAINER.value
            counts[_role(trains)] += spec.workers.gpus_per_pod
        elif pod.component is Component.JUDGE:
            judge += _judge_gpus(spec, pod.index) if pod.index < num_judges else 0
    return GpuCounts(rollout=counts[Role.ROLLOUT], trainer=counts[Role.TRAINER], judge=judge)


def _role(trains: bool) -> Role:
    return Role.TRAINER if trains else Role.ROLLOUT


def _judge_gpus(spec: RLJobSpec, index: int) -> int:
    function, _ = spec.reward.judge_pod(index)
    assert function.pool is not None, "a pool has pods"
    return function.pool.gpus_per_pod
