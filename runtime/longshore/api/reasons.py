"""Reasons of conditions and events: one word for programs, and for people its meaning and what to do.

`docs/reference/reasons.md` is generated from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from longshore.api.status import ConditionType


class Reason(StrEnum):
    """Base of all reasons."""

    meaning: str
    action: str
    """What a user does about it; empty if nothing."""

    def __new__(cls, word: str, meaning: str = "", action: str = "") -> Self:
        """Make a member from its word, which is the value, its meaning, and what a user does about it."""
        reason = str.__new__(cls, word)
        reason._value_ = word
        reason.meaning = meaning
        reason.action = action
        return reason


class AdmittedReason(Reason):
    """Whether a job that has to be admitted may have pods; if not, why it waits."""

    ADMITTED = "Admitted", "all GPUs of the job are reserved for it"
    QUOTA_PENDING = (
        "QuotaPending",
        "the job waits until all its GPUs are free at once",
        "wait; or ask for fewer GPUs, or a [priority](../how-to/queues-and-quotas.md)",
    )
    PREEMPTED = (
        "Preempted",
        "a job of higher priority gets its GPUs; the job continues from its newest checkpoint",
    )
    TOO_LARGE = (
        "TooLarge",
        "the job needs more GPUs than the cluster, or the quota of its namespace, has in total",
        "lower `replicas` or `gpusPerPod` of workers, trainer workers or judge pools, or raise the chart's `admission`",
    )
    EVICTED = (
        "Evicted",
        "Kueue takes the quota back; the job continues when it is admitted again",
    )
    DEACTIVATED = (
        "Deactivated",
        "Kueue or a person made the job's Workload inactive",
        "activate the Workload, or suspend and resume the job",
    )
    QUEUE_UNAVAILABLE = (
        "QueueUnavailable",
        "Kueue, the queue or the priority class cannot be used",
        "see the message",
    )
    POD_GROUP_UNAVAILABLE = (
        "PodGroupUnavailable",
        "the PodGroup that `scheduling.podGroup` asks for cannot be made",
        "see the message",
    )
    PRIORITY_CLASS_NOT_FOUND = (
        "PriorityClassNotFound",
        "the priority class does not exist, or the namespace may not use it",
        "correct or remove the label; the message lists the classes that exist",
    )


class ScheduledReason(Reason):
    """Whether all pods have a node."""

    SCHEDULED = "Scheduled", "every pod has a node"
    WAITING_FOR_PODS = "WaitingForPods", "pods have no node yet, or do not exist yet"
    UNSCHEDULABLE = (
        "Unschedulable",
        "no node fits a pod; the message is the scheduler's",
        "free or add nodes, or lower `workers.replicas`, `gpusPerPod` or `resources`; check `gpuResourceName`",
    )


class ReadyReason(Reason):
    """Whether the job runs; if not, the most informative obstacle."""

    PODS_READY = "PodsReady", "every pod is ready"
    APPLY_FAILED = (
        "ApplyFailed",
        "the API server, a quota, a policy or a limit of the namespace refused an object; the operator keeps trying",
        "see the message, and [quotas and "
        "limits](../how-to/queues-and-quotas.md#namespaces-with-a-resourcequota-or-a-limitrange)",
    )
    STORAGE_NOT_FOUND = (
        "StorageNotFound",
        "the PersistentVolumeClaim does not exist",
        "create the claim `storage.claimName` in the job's namespace, or use `storage.create`",
    )
    STORAGE_PENDING = (
        "StoragePending",
        "the PersistentVolumeClaim is not bound",
        "`kubectl describe pvc`: a StorageClass with the access mode, or the space, is missing",
    )
    STORAGE_LOST = (
        "StorageLost",
        "the PersistentVolumeClaim has lost its volume",
        "restore the volume; a new job needs a new claim",
    )
    POD_GROUP_UNAVAILABLE = (
        "PodGroupUnavailable",
        "the PodGroup without which pods are not created cannot be made",
        "see the message",
    )
    WAITING_FOR_PODS_TO_END = (
        "WaitingForPodsToEnd",
        "pods of an older attempt or of a deleted job of that name have not ended",
        "wait up to 2 minutes; on a lost node, bring it back, remove it, or taint it "
        "`node.kubernetes.io/out-of-service`",
    )
    SERVER_ENDED = (
        "ServerEnded",
        "[the server in an environment pod](../how-to/train-agents.md#a-server-in-the-pods) has ended; until the "
        "kubelet has started it again, episodes go to other pods",
        "read the exit code in the message, and `kubectl logs POD -c server --previous`",
    )
    RESTARTING = "Restarting", "failed pods are being replaced"
    PODS_NOT_READY = (
        "PodsNotReady",
        "pods run but are not ready yet",
        "wait for images, Ray, and the `server` of an environment; then read the log of the pod that the message "
        "names. A pod in `ContainerCreating` may lack a Secret or the ConfigMap of `spec.modules`",
    )
    SUSPENDED = "Suspended", "the job is suspended"
    QUEUED = "Queued", "the job waits to be admitted; the condition `Admitted` says why"
    BEING_DELETED = (
        "BeingDeleted",
        "the job was deleted, and a finalizer of somebody else holds it; its pods are stopped",
        "have the owner of the finalizer, which the message names, remove it, or remove it with `kubectl edit rljob`",
    )
    FINISHED = "Finished", "the job has ended"


class RestartReason(Reason):
    """Why a new attempt starts, or a pod is replaced."""

    COORDINATOR_FAILED = (
        "CoordinatorFailed",
        "the coordinator crashed: a new attempt after the back-off, counted",
        "read [its log](../how-to/troubleshoot.md#the-job-restarts); `OOMKilled` needs more "
        "`coordinator.resources` ([how much](../how-to/install.md#cpu-and-memory))",
    )
    COORDINATOR_INTERRUPTED = (
        "CoordinatorInterrupted",
        "the coordinator was deleted, evicted, preempted or asked to stop: a new attempt, not counted; after a "
        "back-off if it happens again without a newer checkpoint",
        "if it repeats, use a priority class or other nodes, and checkpoints at shorter intervals",
    )
    COORDINATOR_LOST = (
        "CoordinatorLost",
        "the coordinator's pod is gone: a new attempt as after an interruption",
        "if it repeats, find out what removes pods",
    )
    SECRET_DELETED = (
        "SecretDeleted",
        "a Secret with tokens of the job was deleted: a new attempt with new tokens, not counted",
        "if it repeats, find out what removes Secrets",
    )
    SPEC_CHANGED = "SpecChanged", "pods run with other settings than the spec has: a new attempt, not counted"
    POD_FAILED = (
        "PodFailed",
        "another pod crashed: it is replaced after the back-off, counted",
        "read the log of the pod",
    )
    POD_LEFT = (
        "PodLeft",
        "another pod ended without crashing: it is replaced after 10 s or a back-off, not counted",
        "if it repeats, read its log, and give it requests that are as large as what it uses",
    )


class SuspendedReason(Reason):
    """Whether the job is suspended."""

    SUSPENDED = "Suspended", "all pods are stopped; the state is kept"
    CANNOT_CONTINUE = (
        "CannotContinue",
        "the job cannot go on from its checkpoint, as after an edit, or while the endpoint of its teacher is away",
        "`longshore suspend NAME`, correct the field that the message names, or what it stands for, "
        "`longshore resume NAME`",
    )
    RESUMED = "Resumed", "the job continues from its newest checkpoint, and its count of failures starts at zero"


class ResizingReason(Reason):
    """Whether the number of worker pods changes."""

    GROWING = (
        "Growing",
        "worker pods are added; the job takes them at the end of a step",
    )
    SHRINKING = "Shrinking", "the job gives worker pods back at the end of a step"
    AS_GRANTED = "AsGranted", "the job runs with all worker pods that it may have"


class RepurposedReason(Reason):
    """Whether worker pods train while others sample."""

    ACKNOWLEDGED = "Acknowledged", "the coordinator has carried out the assignment"
    OVERLAY_ENDED = "OverlayEnded", "the round is over, and every pod samples"


class RepurposeUnavailableReason(Reason):
    """Why no worker pod trains within a round."""

    NO_POD_TO_SPARE = (
        "NoPodToSpare",
        "there is one worker pod, or no set of whole pods with a trainer replica fits half of the GPUs",
        "use more `workers.replicas`, or smaller trainer replicas or engines",
    )
    DISAGGREGATED = (
        "Disaggregated",
        "trainers have their own pods",
        "set `repurposing.trigger: Never`, or `placement: Colocated`",
    )
    COSTS_MORE = (
        "CostsMore",
        "by the job's own rounds, steps would become longer; repurposing is tried again occasionally",
        "nothing; `repurposing.trigger: Never` ends these tries",
    )


class RegroupUnavailableReason(Reason):
    """Why engines have only one size."""

    TOO_FEW_GPUS = (
        "TooFewGPUs",
        "worker pods have one GPU",
        "raise `workers.gpusPerPod`, or remove `parallelism: Adaptive`",
    )
    NO_OTHER_SIZE = (
        "NoOtherSize",
        "no other size suits the model and the pods",
        "use another `tensorParallelSize` or `gpusPerPod`; the message lists those that suit the model",
    )


class AlarmReason(Reason):
    """Why a job that runs may not learn."""

    LOG_PROB_MISMATCH = (
        "LogProbMismatch",
        "engines and trainers disagree about log-probabilities",
        "check `rollout.engine.dtype` and `extraArgs`; report it if it repeats. Raise `rollout.maxLogProbMismatch` "
        "only for engines that are meant to differ, such as quantised ones",
    )
    REWARDS_TIME_OUT = (
        "RewardsTimeOut",
        "scoring of every response was cut off",
        "raise `timeoutSeconds`, or find out why a function hangs, in the log of the reward pods, which [the "
        "storage keeps](../how-to/score-responses.md#what-a-python-function-finds)",
    )
    REWARDS_FAULT = (
        "RewardsFault",
        "scoring fails about as often as it succeeds, or more",
        "repair the endpoint, judge or pod of the reward function; see the same log",
    )
    ENVIRONMENTS_FAULT = (
        "EnvironmentsFault",
        "[episodes fail](../how-to/train-with-environments.md#when-an-environment-fails) about as often as they "
        "succeed, or more",
        "read the events `EnvironmentFailed` and `longshore logs NAME --component environment`",
    )
    REWARDS_ALL_ZERO = (
        "RewardsAllZero",
        "every reward of three steps was 0",
        "check `reward.functions`, `data.answerField` and the format that the prompt asks for; or use a stronger "
        "model or easier prompts",
    )
    REWARDS_ALL_EQUAL = (
        "RewardsAllEqual",
        "in three steps, all rewards within each group were equal",
        "use prompts of another difficulty, a larger `responsesPerPrompt`, or a reward that distinguishes responses",
    )
    GRADIENT_ZERO = (
        "GradientZero",
        "the gradient norm was 0 in three steps although advantages were not",
        "check `algorithm.objective` and `maskStaleTokens`",
    )
    RESPONSES_ALL_CUT = (
        "ResponsesAllCut",
        "every response of three steps was cut",
        "raise `maxResponseTokens`; check the end token and the chat template of the model",
    )
    HELD_OUT_REWARD_FELL = (
        "HeldOutRewardFell",
        "held-out reward is lower than before the first step, by more than chance",
        "lower `learningRate`; check the reward, and [`rollout_corr/log_prob_mismatch_mean`](metrics.md)",
    )


class TrainingAlarmReason(Reason):
    """What else the condition says about alarms."""

    CLEARED = "Cleared", "the symptom that raised the alarm is gone"


class CompleteReason(Reason):
    """How a job succeeded."""

    FINISHED = "Finished", "all steps are done"


class FailedReason(Reason):
    """Why a job failed permanently."""

    USER_ERROR = (
        "UserError",
        "a mistake that a retry cannot fix, or a full volume",
        "see the message: it names the field, the row, the file or the function",
    )
    BACKOFF_LIMIT_EXCEEDED = (
        "BackoffLimitExceeded",
        "more failures than `backoffLimit` without a newer checkpoint",
        "read the last failure in the message, and the log of that pod; raise `backoffLimit` only for failures "
        "that pass",
    )
    OUT_OF_MEMORY = (
        "OutOfMemory",
        "pods were killed twice at the same step for using more memory than their limit",
        "raise the field that the message names; `longshore check` with `--model` estimates what pods without real "
        "GPUs need",
    )
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded",
        "active for longer than `activeDeadlineSeconds`",
        "raise `activeDeadlineSeconds`, or lower `algorithm.steps`",
    )
    TEMPLATE_REFUSED = (
        "TemplateRefused",
        "a pod template asks for [more than templates may](operator.md#templates), or is not shaped like a pod",
        "remove the field; allow classes with the chart's `templates`, or all with `allowPrivilegedTemplates` and "
        "its consequences",
    )
    INVALID_SPEC = (
        "InvalidSpec",
        "this version of the operator cannot read the stored spec",
        "create a new job ([upgrades](../how-to/upgrade-and-uninstall.md))",
    )


class StatusUnreadableReason(Reason):
    """What happened to a status that cannot be read."""

    DROPPED = (
        "Dropped",
        "parts of the stored status, usually the coordinator's report, are ignored",
        "use the same version of Longshore in `spec.image` as in the operator",
    )


class NoticeReason(Reason):
    """What the coordinator reports besides alarms: trouble that did not end the attempt, and `FactorsChanged`."""

    ENGINE_LOST = (
        "EngineLost",
        "an engine is gone; its requests are sampled again on the others",
        "if it repeats, read the log of that worker; the usual cause is memory, of the GPU or of the pod",
    )
    ENGINE_DID_NOT_SLEEP = (
        "EngineDidNotSleep",
        "an engine did not fall asleep in time and was stopped",
        "if it repeats, read the message, and the log of that worker",
    )
    ENVIRONMENT_FAILED = (
        "EnvironmentFailed",
        "an episode has failed; it begins anew, or, after its last attempt, its group is replaced",
    )
    TRAINER_LOST = (
        "TrainerLost",
        "a trainer process is gone; all trainers start again from the newest checkpoint",
        "if it ran out of memory, lower `trainer.maxTokensPerMicroBatch` or raise the memory of the pods; a second "
        "such death in the same step ends the job",
    )
    FEW_PROMPTS = (
        "FewPrompts",
        "there are fewer prompts to train on than one step takes: steps repeat some",
        "add rows, or lower `promptsPerStep` or `heldOutPrompts`",
    )
    WARM_START_ROWS = (
        "WarmStartRows",
        "rows of the warm start are left out because they are longer than the context of the model",
        "raise `model.maxContextTokens`, or shorten the rows",
    )
    NO_GENERATION_PROMPT = (
        "NoGenerationPrompt",
        "the chat template ends prompts before the assistant's turn begins",
        "set `data.chat.template`; the message says how prompts should end",
    )
    PROFILE_MISMATCH = (
        "ProfileMismatch",
        "the profile is of another model, accelerator or setup; it is measured again",
    )
    CHECKPOINT_DAMAGED = (
        "CheckpointDamaged",
        "the newest checkpoint cannot be read; the job continues from the one before it",
        "look at the storage",
    )
    TRACKER_FAILED = (
        "TrackerFailed",
        "a tracker or a collector of traces cannot be reached; the job continues without it, and tries again every "
        "30 s",
        "correct `spec.tracking` while the job is suspended",
    )
    FACTORS_CHANGED = (
        "FactorsChanged",
        "strategy `Auto` changes its factors, handover or frontier",
    )
    RECORDS_INCOMPLETE = (
        "RecordsIncomplete",
        "a round could not be recorded; the job continues",
        "read the message: the volume may be full, or slower than the job",
    )


class EventReason(Reason):
    """What happens to a job, besides what conditions show."""

    STARTED = "Started", "the first attempt begins"
    POD_LOST = "PodLost", "a pod that was ready is deleted or disrupted; it is replaced"
    REWARD_PODS_RESIZED = "RewardPodsResized", "the number of reward pods follows the load"
    QUOTA_RETURNED = "QuotaReturned", "Kueue gets the quota of reward pods that were not wanted for long"
    IMAGE_DEFERRED = (
        "ImageDeferred",
        "a new `spec.image` takes effect with the next attempt",
        "suspend and resume the job to start one now",
    )
    STATUS_UNREADABLE = (
        "StatusUnreadable",
        "parts of the stored status cannot be read",
        "as for `Dropped`",
    )
    RESIZED = "Resized", "an elastic job goes on with another number of worker pods"
    REPURPOSING = "Repurposing", "the operator asks pods to train for the rest of the round"
    REPURPOSED = "Repurposed", "the coordinator has carried out that request, and the pods train"
    REGROUPING = "Regrouping", "the operator asks for engines of another tensor-parallel size"
    ASSIGNMENT_REJECTED = (
        "AssignmentRejected",
        "the coordinator could not carry out an assignment",
        "if it repeats, read the message, and the log of the worker",
    )
    PLANNER_RESET = "PlannerReset", "the parallelism planner's history cannot be read; it starts without one"


@dataclass(frozen=True, slots=True)
class ConditionReasons:
    """A condition, and the reasons that it can have."""

    meaning: str
    reasons: tuple[type[Reason], ...]


CONDITIONS: Final[Mapping[ConditionType, ConditionReasons]] = {
    ConditionType.ADMITTED: ConditionReasons(
        "True while the job may have pods, and False while it waits for its GPUs. Absent if jobs need no "
        "[admission](../how-to/queues-and-quotas.md).",
        (AdmittedReason,),
    ),
    ConditionType.SCHEDULED: ConditionReasons("True while every pod has a node.", (ScheduledReason,)),
    ConditionType.READY: ConditionReasons(
        "True while every pod is ready. Otherwise the reason is the obstacle: one of these, or what the kubelet says "
        "of a container that waits, such as `ImagePullBackOff`.",
        (ReadyReason, RestartReason),
    ),
    ConditionType.SUSPENDED: ConditionReasons(
        "True while `spec.suspend` is true, or the job cannot go on until it is corrected; False after resumption.",
        (SuspendedReason,),
    ),
    ConditionType.RESIZING: ConditionReasons(
        "True while an [elastic job](../how-to/queues-and-quotas.md#let-a-job-grow-and-shrink) takes or gives back "
        "worker pods.",
        (ResizingReason,),
    ),
    ConditionType.REPURPOSED: ConditionReasons(
        "True while some worker pods train and others sample.",
        (RepurposedReason,),
    ),
    ConditionType.REPURPOSE_UNAVAILABLE: ConditionReasons(
        "True if pods should be repurposed but cannot be, or if this would make steps longer.",
        (RepurposeUnavailableReason,),
    ),
    ConditionType.REGROUP_UNAVAILABLE: ConditionReasons(
        "True if `parallelism` is `Adaptive` but engines have only one size.", (RegroupUnavailableReason,)
    ),
    ConditionType.TRAINING_ALARM: ConditionReasons(
        "True while an alarm lasts, and after the end of a job that ended with one ([when alarms are "
        "raised](../explanation/training-alarms.md)).",
        (AlarmReason, TrainingAlarmReason),
    ),
    ConditionType.COMPLETE: ConditionReasons("True when the job has succeeded.", (CompleteReason,)),
    ConditionType.FAILED: ConditionReasons("True when the job has failed permanently.", (FailedReason,)),
    ConditionType.STATUS_UNREADABLE: ConditionReasons(
        "True while parts of the stored status cannot be read.", (StatusUnreadableReason,)
    ),
}
EVENTS: Final[tuple[Reason, ...]] = (
    *EventReason,
    AdmittedReason.ADMITTED,
    AdmittedReason.PREEMPTED,
    AdmittedReason.EVICTED,
    AdmittedReason.DEACTIVATED,
    ScheduledReason.UNSCHEDULABLE,
    *SuspendedReason,
    ReadyReason.SERVER_ENDED,
    ResizingReason.GROWING,
    ResizingReason.SHRINKING,
    *(reason for reason in RestartReason if reason is not RestartReason.POD_LEFT),
    *NoticeReason,
    *AlarmReason,
    *CompleteReason,
    *FailedReason,
)
"""Reasons of events."""
