"""RLJob.spec: the whole of what a user asks for."""

from enum import StrEnum
from typing import Any

from pydantic import Field, model_validator

from longshore.api.algorithm import Algorithm
from longshore.api.base import IMMUTABLE, ApiModel, cel
from longshore.api.limits import MAX_PODS, check_spec
from longshore.api.model import Data, Evaluation, Model
from longshore.api.objective import OBJECTIVES
from longshore.api.pods import PodOptions, Storage, Workers
from longshore.api.reward import Reward, RewardKind
from longshore.api.rollout import Leftovers, OnPolicy, Rollout, Strategy, WeightTransfer
from longshore.api.training import Checkpoint, Trainer


class Placement(StrEnum):
    """Where trainers run."""

    COLOCATED = "Colocated"
    DISAGGREGATED = "Disaggregated"


class Profiling(StrEnum):
    """Whether a job measures the hardware before it trains."""

    OFF = "Off"
    FIRST = "First"
    ONLY = "Only"


class CleanPodPolicy(StrEnum):
    """Which pods a finished job deletes."""

    RUNNING = "Running"
    ALL = "All"


_FROZEN_WHILE_RUNNING = (
    "algorithm", "rollout", "reward", "trainer", "workers", "coordinator", "checkpoint", "evaluation", "placement",
    "profiling",
)  # fmt: skip

_MEGATRON_RANKS = (
    "self.trainer.tensorParallelSize * self.trainer.pipelineParallelSize * self.trainer.contextParallelSize"
)
_RANKS_PER_REPLICA = f"{_MEGATRON_RANKS} * self.trainer.fsdpSize"

_NOT_STREAMED = "!has(self.rollout.handover) || self.rollout.handover != 'Streamed'"


def _fits(pods: str, unless: str) -> tuple[tuple[str, str, str], ...]:
    """Rules that trainer replicas fit into these pods."""
    return (
        (
            f"{unless}self.{pods}.gpusPerPod == 0 || self.{pods}.gpusPerPod % ({_MEGATRON_RANKS}) == 0",
            f"tensorParallelSize * pipelineParallelSize * contextParallelSize must divide {pods}.gpusPerPod: a replica "
            "lies inside one pod",
            ".trainer.tensorParallelSize",
        ),
        (
            f"{unless}self.{pods}.gpusPerPod == 0 || self.{pods}.gpusPerPod % self.trainer.fsdpSize == 0",
            f"fsdpSize must divide {pods}.gpusPerPod: a replica lies inside one pod",
            ".trainer.fsdpSize",
        ),
        (
            f"{unless}!has(self.trainer.dataParallelSize) || self.trainer.dataParallelSize <= self.{pods}.replicas * "
            f"(self.{pods}.gpusPerPod > 0 ? self.{pods}.gpusPerPod / ({_RANKS_PER_REPLICA}) : 1)",
            f"dataParallelSize exceeds the replicas that the GPUs of all {pods} hold (or the pods, where they have "
            "none)",
            ".trainer.dataParallelSize",
        ),
    )


_NUM_PODS = (
    "self.workers.replicas + (has(self.trainerWorkers) ? self.trainerWorkers.replicas : 0) + "
    "(has(self.reward.maxPods) ? self.reward.maxPods : self.reward.pods) + self.reward.functions.map(one, "
    "has(one.judge) && has(one.judge.pool) ? one.judge.pool.replicas : 0).sum()"
)
_TOO_MANY_PODS = (
    f"workers, trainerWorkers, reward pods and the judges' pools have more than {MAX_PODS:,} pods together, which is "
    "the limit of a job: ask for fewer"
)

_SPEC_RULES = cel(
    (f"{_NUM_PODS} <= {MAX_PODS}", _TOO_MANY_PODS, ".workers.replicas"),
    (
        "self.workers.gpusPerPod == 0 || self.workers.gpusPerPod % self.rollout.engine.tensorParallelSize == 0",
        "tensorParallelSize must divide workers.gpusPerPod: an engine lies inside one pod",
        ".rollout.engine.tensorParallelSize",
    ),
    (
        "self.rollout.onPolicy != 'Strict' || self.rollout.strategy != 'PartialRollout'",
        "PartialRollout trains on tokens of older weights: set onPolicy to Relaxed or choose another strategy",
        ".rollout.strategy",
    ),
    (
        "self.rollout.onPolicy != 'Strict' || !has(self.rollout.leftovers) || self.rollout.leftovers != 'KeepTokens'",
        "KeepTokens trains on tokens of older weights: set onPolicy to Relaxed or leftovers to DropTokens",
        ".rollout.leftovers",
    ),
    (
        "!has(self.rollout.leftovers) || self.rollout.strategy != 'PartialRollout' || "
        "self.rollout.leftovers == 'KeepTokens'",
        "PartialRollout is about keeping tokens: choose ReorderRollout to drop them",
        ".rollout.leftovers",
    ),
    (
        "!has(self.rollout.leftovers) || !(self.rollout.strategy in ['Synchronous', 'GroupPipeline'])",
        "this strategy leaves nothing over: remove leftovers or choose another strategy",
        ".rollout.leftovers",
    ),
    (
        "self.algorithm.name != 'ReinforcePlusPlus' || !has(self.algorithm.promptsPerUpdate) || "
        "self.algorithm.promptsPerUpdate == self.algorithm.promptsPerStep",
        "ReinforcePlusPlus whitens over the whole batch: remove promptsPerUpdate or choose another algorithm",
        ".algorithm.promptsPerUpdate",
    ),
    (
        "self.algorithm.name != 'ReinforcePlusPlus' || (has(self.rollout.handover) ? "
        "self.rollout.handover != 'Pipelined' : self.rollout.strategy != 'GroupPipeline')",
        "ReinforcePlusPlus whitens advantages over the whole batch, which a pipeline never holds: choose another "
        "algorithm or handover AfterRound",
        ".rollout.handover",
    ),
    (
        f"{_NOT_STREAMED} || !has(self.algorithm.promptsPerUpdate) || "
        "self.algorithm.promptsPerUpdate == self.algorithm.promptsPerStep",
        "Streamed gradients make one update at the end of the round: remove promptsPerUpdate or choose Pipelined",
        ".algorithm.promptsPerUpdate",
    ),
    (
        f"{_NOT_STREAMED} || self.algorithm.name != 'ReinforcePlusPlus'",
        "ReinforcePlusPlus whitens advantages over the whole batch, which a stream never holds: choose another "
        "algorithm or handover AfterRound",
        ".rollout.handover",
    ),
    (
        f"{_NOT_STREAMED} || self.rollout.strategy != 'GroupPipeline'",
        "GroupPipeline updates while the round runs: remove handover or choose another strategy",
        ".rollout.handover",
    ),
    (
        "(self.placement == 'Disaggregated') == has(self.trainerWorkers)",
        "trainerWorkers are the pods of the trainer with placement Disaggregated, and with that alone",
        ".trainerWorkers",
    ),
    (
        "self.algorithm.maxResponseTokens < self.model.maxContextTokens",
        "maxResponseTokens must be below model.maxContextTokens, which also holds the prompt",
        ".algorithm.maxResponseTokens",
    ),
    (
        "has(self.data.builtin) || self.reward.functions.all(one, one.kind != 'Task')",
        "kind Task scores the built-in task: choose another kind for data of your own",
        ".reward.functions",
    ),
    (
        "has(self.data.domainField) || self.reward.functions.all(one, !has(one.domains) || size(one.domains) == 0)",
        "domains need data.domainField, the field of a row that names its domain",
        ".data.domainField",
    ),
    (
        "self.model.warmStartSteps == 0 || (has(self.model.builtin) && has(self.data.builtin))",
        "warmStartSteps needs the built-in model and task",
        ".model.warmStartSteps",
    ),
    *_fits("workers", "has(self.trainerWorkers) || "),
    *_fits("trainerWorkers", "!has(self.trainerWorkers) || "),
    *(
        (
            f"oldSelf.suspend || self.{field} == oldSelf.{field}",
            f"{field} may change only while the job is suspended: set suspend to true first",
            f".{field}",
        )
        for field in _FROZEN_WHILE_RUNNING
    ),
    (
        "oldSelf.suspend || (has(self.trainerWorkers) == has(oldSelf.trainerWorkers) && "
        "(!has(self.trainerWorkers) || self.trainerWorkers == oldSelf.trainerWorkers))",
        "trainerWorkers may change only while the job is suspended: set suspend to true first",
        ".trainerWorkers",
    ),
)


class RLJobSpec(ApiModel):
    """A reinforcement-learning run."""

    model_config = {"json_schema_extra": _SPEC_RULES}

    model: Model = Field(json_schema_extra=IMMUTABLE)
    """The model to train."""
    data: Data = Field(json_schema_extra=IMMUTABLE)
    """Prompts to train on."""
    algorithm: Algorithm
    """Objective and batch."""
    rollout: Rollout = Field(default_factory=Rollout)
    """How responses are sampled."""
    reward: Reward = Field(default_factory=Reward)
    """How responses are scored."""
    trainer: Trainer = Field(default_factory=Trainer)
    """How weights are updated."""
    evaluation: Evaluation = Field(default_factory=Evaluation)
    """Scoring of held-out prompts."""
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    """When state is saved."""
    storage: Storage = Field(json_schema_extra=IMMUTABLE)
    """Where model, data and output lie."""
    workers: Workers = Field(default_factory=Workers)
    """GPU pods; with placement Colocated they sample and train, with Disaggregated they sample."""
    placement: Placement = Placement.COLOCATED
    """Colocated: engines and trainers share the workers. Disaggregated: trainers have pods of their own."""
    trainer_workers: Workers | None = None
    """GPU pods of the trainer, with placement Disaggregated."""
    profiling: Profiling = Profiling.OFF
    """First: measure throughputs on the job's own pods before it trains, into `profile.json` of its output, for
    `longshore simulate --profile`. Only: measure and end."""
    coordinator: PodOptions = Field(default_factory=PodOptions)
    """The pod with the Ray head and the training loop."""
    image: str | None = Field(default=None, min_length=1, max_length=512)
    """Runtime image; unset: the one that the operator was installed with."""
    suspend: bool = False
    """Stop all pods and keep the state; false again resumes from the newest checkpoint."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Delete the job so long after it finished; unset: never."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """Fail the job when it has been active for so long."""
    backoff_limit: int = Field(default=6, ge=0, le=1_000)
    """Failed attempts after which the job fails; lost nodes and evictions are not counted."""
    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.RUNNING
    """Running: finished pods stay for their logs; All: every pod is deleted."""

    @model_validator(mode="before")
    @classmethod
    def _is_small(cls, value: Any) -> Any:
        """Looked at first, so that nothing else meets what is too large."""
        return check_spec(value)

    @model_validator(mode="after")
    def _cross_field_rules(self) -> "RLJobSpec":
        """The CEL rules again, for those who build a spec in Python."""
        if self.num_pods > MAX_PODS:
            raise ValueError(f"workers.replicas: {_TOO_MANY_PODS}")
        gpus, tp_size = self.workers.gpus_per_pod, self.rollout.engine.tensor_parallel_size
        if gpus and gpus % tp_size:
            raise ValueError(f"rollout.engine.tensorParallelSize: {tp_size} must divide workers.gpusPerPod ({gpus})")
        _check_combination(self.algorithm, self.rollout)
        if (self.model.path is None) == (self.model.builtin is None):
            raise ValueError("model: set exactly one of path and builtin")
        if (self.data.path is None) == (self.data.builtin is None):
            raise ValueError("data: set exactly one of path and builtin")
        if (self.storage.claim_name is None) == (self.storage.create is None):
            raise ValueError("storage: set exactly one of claimName and create")
        if self.data.builtin is None and any(one.kind is RewardKind.TASK for one in self.reward.functions):
            raise ValueError("reward.functions: kind Task scores the built-in task only")
        if self.data.domain_field is None and any(one.domains for one in self.reward.functions):
            raise ValueError("data.domainField: reward functions with domains need it")
        if self.model.warm_start_steps and (self.model.builtin is None or self.data.builtin is None):
            raise ValueError("model.warmStartSteps: needs the built-in model and task")
        if (self.placement is Placement.DISAGGREGATED) != (self.trainer_workers is not None):
            raise ValueError("trainerWorkers: set it with placement Disaggregated, and with that alone")
        _check_trainer(
            self.trainer, self.training_pods, "workers" if self.trainer_workers is None else "trainerWorkers"
        )
        if self.algorithm.max_response_tokens >= self.model.max_context_tokens:
            raise ValueError("algorithm.maxResponseTokens: must be below model.maxContextTokens")
        return self

    @property
    def transfers_directly(self) -> bool:
        """Whether new weights go straight from trainers to engines."""
        transfer = self.rollout.engine.weight_transfer
        return transfer is WeightTransfer.DIRECT or (transfer is WeightTransfer.AUTO and self.workers.has_accelerator)

    @property
    def num_pods(self) -> int:
        """Most pods that the job has at once besides the coordinator."""
        trainers = self.trainer_workers.replicas if self.trainer_workers is not None else 0
        return self.workers.replicas + trainers + self.reward.most_pods + self.reward.num_judge_pods

    @property
    def training_pods(self) -> Workers:
        """The pods on which trainers run."""
        return self.trainer_workers or self.workers


def _check_trainer(trainer: Trainer, workers: Workers, field: str) -> None:
    """Replicas fit into the pods."""
    gpus, num_ranks = workers.gpus_per_pod, trainer.ranks_per_replica
    if gpus and gpus % trainer.fsdp_size:
        raise ValueError(f"trainer.fsdpSize: {trainer.fsdp_size} must divide {field}.gpusPerPod ({gpus})")
    if gpus and gpus % num_ranks:
        raise ValueError(
            f"trainer.tensorParallelSize: times pipelineParallelSize and contextParallelSize it is {num_ranks}, which "
            f"must divide {field}.gpusPerPod ({gpus})"
        )
    slots = workers.replicas * (gpus // num_ranks if gpus else 1)
    if (trainer.data_parallel_size or 0) > slots:
        raise ValueError(f"trainer.dataParallelSize: exceeds the {slots} replicas that the {field} hold")


def _check_combination(algorithm: Algorithm, rollout: Rollout) -> None:
    """Parts of a round policy, and objectives, that would break a promise together."""
    if rollout.on_policy is OnPolicy.STRICT and rollout.strategy is Strategy.PARTIAL_ROLLOUT:
        raise ValueError("rollout.strategy: PartialRollout needs rollout.onPolicy: Relaxed")
    if rollout.on_policy is OnPolicy.STRICT and rollout.leftovers is Leftovers.KEEP_TOKENS:
        raise ValueError("rollout.leftovers: KeepTokens needs rollout.onPolicy: Relaxed")
    if rollout.strategy is Strategy.PARTIAL_ROLLOUT and rollout.leftovers is Leftovers.DROP_TOKENS:
        raise ValueError("rollout.leftovers: PartialRollout keeps tokens; choose ReorderRollout to drop them")
    if rollout.leftovers is not None and rollout.strategy in (Strategy.SYNCHRONOUS, Strategy.GROUP_PIPELINE):
        raise ValueError(f"rollout.leftovers: {rollout.strategy} leaves nothing over; remove it")
    if OBJECTIVES[algorithm.name].needs_whole_batch:
        if algorithm.groups_per_update < algorithm.prompts_per_step:
            raise ValueError(f"algorithm.promptsPerUpdate: {algorithm.name} needs the whole batch; remove it")
        if rollout.is_pipelined or rollout.is_streamed:
            raise ValueError(f"rollout.handover: {algorithm.name} needs the whole batch; set AfterRound")
    if rollout.is_streamed:
        if rollout.strategy is Strategy.GROUP_PIPELINE:
            raise ValueError("rollout.handover: GroupPipeline updates while the round runs; remove it")
        if algorithm.groups_per_update < algorithm.prompts_per_step:
            raise ValueError("algorithm.promptsPerUpdate: Streamed makes one update per round; remove it")
