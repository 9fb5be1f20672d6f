"""RLJob.spec: the whole of what a user asks for."""

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from longshore.api import names
from longshore.api.algorithm import Algorithm
from longshore.api.base import ApiModel
from longshore.api.environment import Environment, environment_pods
from longshore.api.hub import Hub
from longshore.api.limits import MAX_PODS, check_spec
from longshore.api.model import Data, Evaluation, Model, Source
from longshore.api.objectives.advantages import OF_WHOLE_BATCH
from longshore.api.objectives.custom import Custom
from longshore.api.objectives.registry import UNFINISHED, WITH_CRITIC, having_advantage
from longshore.api.pods import ElasticWorkers, PodOptions, Storage, Workers
from longshore.api.records import Records
from longshore.api.reward import Reward
from longshore.api.rollout import Rollout, WeightTransfer
from longshore.api.rules import CHANGES_WHILE_SUSPENDED, IMMUTABLE, Rule, belongs, have_different_names
from longshore.api.scheduling import Scheduling
from longshore.api.shapes import all_parts, pods_per_step
from longshore.api.tracking import Tracking
from longshore.api.training import CheckpointSettings, TrainerSettings


class Placement(StrEnum):
    """Where trainers run."""

    COLOCATED = "Colocated"
    DISAGGREGATED = "Disaggregated"


class Profiling(StrEnum):
    """Whether a job measures the hardware before it trains."""

    OFF = "Off"
    FIRST = "First"
    ONLY = "Only"


_FROZEN_WHILE_RUNNING: Final = (
    "algorithm", "rollout", "reward", "environments", "trainer", "workers", "coordinator", "checkpoint", "evaluation",
    "placement", "profiling", "hub", "records", "tracking", "scheduling",
)  # fmt: skip
_NUM_PODS: Final = (
    "self.workers.replicas + self.?trainerWorkers.?replicas.orValue(0) + self.reward.?maxPods.orValue(self.reward.pods)"
    " + self.reward.functions.map(one, one.?judge.?pool.?replicas.orValue(0)).sum()"
    " + self.environments.map(one, one.pods.count).sum()"
)
_TRAINING_GPUS: Final = "self.?trainerWorkers.?gpusPerPod.orValue(self.workers.gpusPerPod)"
_LEAST_WORKERS: Final = "self.workers.?minReplicas.orValue(self.workers.replicas)"
_TRAINING_PODS: Final = f"self.?trainerWorkers.?replicas.orValue({_LEAST_WORKERS})"
_MOST_TRAINING_PODS: Final = "self.?trainerWorkers.?replicas.orValue(self.workers.replicas)"
_MEGATRON_RANKS: Final = (
    "(self.trainer.tensorParallelSize * self.trainer.pipelineParallelSize * self.trainer.contextParallelSize)"
)
_RANKS: Final = f"({_MEGATRON_RANKS} * self.trainer.fsdpSize)"
_HANDOVER: Final = (
    "self.rollout.?handover.orValue(self.rollout.strategy == 'GroupPipeline' ? 'Pipelined' : 'AfterRound')"
)
_ONE_UPDATE: Final = (
    "self.algorithm.?promptsPerUpdate.orValue(self.algorithm.promptsPerStep) == self.algorithm.promptsPerStep"
)
_WHOLE_BATCH: Final = having_advantage("self.algorithm.objective", OF_WHOLE_BATCH)
_WITH_CRITIC: Final = f"(self.algorithm.objective.name in {WITH_CRITIC})"
_UNFINISHED: Final = f"(self.algorithm.objective.name in {UNFINISHED})"
# Kubernetes estimates that comparisons of optional values cost too much.
_MANAGED_BY: Final = "(has({0}.managedBy) ? {0}.managedBy : 'longshore.dev/operator')"


def _frozen(field: str, is_same: str) -> Rule:
    message = f"{field} {CHANGES_WHILE_SUSPENDED}: run `longshore suspend` or set suspend to true first"
    return Rule(field, f"oldSelf.suspend || {is_same}", message)


_ENGINES_ON_GPUS: Final = (
    "(self.rollout.engine.backend == 'Fake' || self.workers.gpusPerPod > 0 && "
    f"!self.workers.gpuResourceName.startsWith('{names.GROUP}/'))"
)
_MUST_FILL: Final = (
    "must divide gpusPerPod, or be a multiple of it that replicas and minReplicas of these pods hold whole: choose "
    "another size or number of pods"
)


def _fill(size: str, gpus: str, *num_pods: str) -> str:
    """Return the expression that engines or replicas of a size fill pods of so many GPUs (`shapes.is_possible`)."""
    whole = " && ".join(f"{count} % ({size} / {gpus}) == 0" for count in num_pods)
    return f"{gpus} % {size} == 0 || {gpus} > 0 && {size} % {gpus} == 0 && {whole}"


_RULES: Final = (
    Rule(
        "workers.replicas",
        f"{_NUM_PODS} <= {MAX_PODS}",
        f"workers, trainerWorkers, reward pods, judge pools and environments are more than {MAX_PODS:,} pods together: "
        "ask for fewer",
    ),
    Rule(
        "rollout.engine.tensorParallelSize",
        _fill(
            "self.rollout.engine.tensorParallelSize",
            "self.workers.gpusPerPod",
            "self.workers.replicas",
            _LEAST_WORKERS,
        ),
        f"tensorParallelSize {_MUST_FILL}",
    ),
    Rule(
        "rollout.onPolicy",
        "self.rollout.onPolicy != 'Strict' || self.environments.size() > 0 || "
        "self.rollout.strategy != 'PartialRollout' && "
        "self.rollout.?leftovers.orValue('') != 'KeepTokens'",
        "onPolicy must be Relaxed with strategy PartialRollout or leftovers KeepTokens, which train on tokens of older "
        "weights: set it",
    ),
    Rule(
        "rollout.leftovers",
        "!has(self.rollout.leftovers) || self.rollout.strategy in ['TailBatching', 'ReorderRollout', 'Auto']",
        "leftovers does not apply to PartialRollout, which keeps tokens, and to Synchronous and GroupPipeline, which "
        "finish every response: remove it",
    ),
    Rule(
        "rollout.handover",
        f"{_HANDOVER} == 'AfterRound' || self.algorithm.epochsPerStep == 1 && !{_WHOLE_BATCH} && !{_WITH_CRITIC}",
        f"handover must be AfterRound with advantage {', '.join(OF_WHOLE_BATCH)}, {' or '.join(WITH_CRITIC)}, or "
        "epochsPerStep above 1, which need "
        "the whole batch before the first update: set it",
    ),
    Rule(
        "rollout.handover",
        f"{_HANDOVER} != 'Streamed' || self.rollout.strategy != 'GroupPipeline'",
        "handover cannot be Streamed with GroupPipeline, which updates while the round runs: remove it",
    ),
    Rule(
        "algorithm.promptsPerUpdate",
        f"{_ONE_UPDATE} || {_HANDOVER} != 'Streamed' && !{_WHOLE_BATCH} && !{_UNFINISHED}",
        f"promptsPerUpdate does not apply to handover Streamed, {' or '.join(UNFINISHED)}, and to advantage "
        f"{', '.join(OF_WHOLE_BATCH)}, which "
        "make one update of the whole batch: remove it",
    ),
    Rule(
        "algorithm.rolloutCorrection",
        f"!has(self.algorithm.rolloutCorrection) || {_ONE_UPDATE} || {_HANDOVER} != 'Pipelined'",
        "rolloutCorrection needs the weights of the step's start for the whole batch, which several updates within a "
        "round change: remove promptsPerUpdate, or set rollout.handover to AfterRound",
    ),
    Rule(
        "rollout.engine.quantization",
        "!has(self.rollout.engine.quantization) || has(self.algorithm.rolloutCorrection) && "
        "self.algorithm.rolloutCorrection.rolloutIs != 'None'",
        "quantization needs algorithm.rolloutCorrection with importance weights, because engines sample with "
        "probabilities that are not the trainer's: set it to {}",
    ),
    Rule(
        "rollout.engine.quantization",
        f"!has(self.rollout.engine.quantization) || {_ENGINES_ON_GPUS}",
        "quantization needs engines on GPUs: remove it, or ask for GPUs",
    ),
    Rule(
        "rollout.engine.quantization",
        "!has(self.rollout.engine.quantization) || self.rollout.engine.dtype in ['auto', 'bfloat16']",
        "quantization computes in bfloat16 besides: set dtype to auto or bfloat16",
    ),
    Rule(
        "rollout.engine.quantization",
        "!has(self.rollout.engine.quantization) || !has(self.trainer.lora)",
        "quantization does not apply to trainer.lora, whose engines never get the frozen weights: remove one of them",
    ),
    Rule(
        "rollout.engine.sleepLevel",
        "!has(self.trainer.lora) || self.rollout.engine.sleepLevel < 2",
        "sleepLevel must be below 2 with trainer.lora, because the weights that engines drop are never sent again: set "
        "it to 1",
    ),
    Rule(
        "trainer.lora",
        f"!has(self.trainer.lora) || !self.trainer.lora.experts || {_ENGINES_ON_GPUS}",
        "lora.experts needs engines on GPUs, because vLLM on CPUs adapts no experts: remove it, or ask for GPUs",
    ),
    Rule(
        "rollout.strategy",
        f"!{_UNFINISHED} || self.rollout.strategy == 'PartialRollout'",
        f"strategy must be PartialRollout with {' and '.join(UNFINISHED)}, which trains on responses that it leaves "
        "over: set it, or choose another objective",
    ),
    Rule(
        "trainer.backend",
        f"!{_WITH_CRITIC} || self.trainer.backend != 'Megatron'",
        f"backend Megatron has no critic, which {' and '.join(WITH_CRITIC)} needs: choose Torch",
    ),
    Rule(
        "trainer.lora",
        f"!{_WITH_CRITIC} || !has(self.trainer.lora)",
        f"lora does not apply to {' and '.join(WITH_CRITIC)}, whose critic has no adapter: remove it, or choose "
        "another objective",
    ),
    Rule(
        "trainer.routerReplay",
        f"!self.trainer.routerReplay || {_ENGINES_ON_GPUS}",
        "routerReplay needs engines on GPUs, because vLLM on CPUs does not return experts: remove it, or ask for GPUs",
    ),
    Rule(
        "coordinator.resources",
        "!self.trainer.routerReplay || 'memory' in self.coordinator.resources",
        "resources need memory with trainer.routerReplay, since the default does not count the experts of every token: "
        "set what `longshore check` with the model says",
    ),
    belongs("trainerWorkers", "placement", Placement.DISAGGREGATED),
    Rule(
        "algorithm.maxResponseTokens",
        "self.algorithm.maxResponseTokens < self.model.maxContextTokens",
        "maxResponseTokens must be below model.maxContextTokens, which also holds the prompt: lower it",
    ),
    Rule(
        "reward.functions",
        "has(self.data.builtin) || self.reward.functions.all(one, one.kind != 'Task')",
        "functions of kind Task score the built-in task: choose another kind for data of your own",
    ),
    Rule(
        "environments",
        "self.environments.exists(one, one.kind == 'Task') == (self.data.?builtin.orValue('') == 'Guessing')",
        "environments of kind Task belong to data.builtin Guessing: set both or neither",
    ),
    Rule(
        "reward.functions",
        "self.data.?builtin.orValue('') != 'Guessing' || self.reward.functions.all(one, one.kind != 'Task')",
        "functions of kind Task score data.builtin Counting: choose kind Environment for Guessing",
    ),
    Rule(
        "rollout.strategy",
        "self.environments.size() == 0 || self.rollout.strategy != 'PartialRollout' && "
        "self.rollout.?leftovers.orValue('') != 'KeepTokens'",
        "strategy PartialRollout and leftovers KeepTokens go on from tokens of an older round, which environments "
        "cannot: choose another strategy, and remove leftovers",
    ),
    Rule(
        "environments",
        "self.environments.size() < 2 || self.environments.filter(one, !has(one.domains) || one.domains.size() == 0)"
        ".all(one, one.name == self.environments[self.environments.size() - 1].name)",
        "environments without domains take every row, so only the last one may have none: name domains",
    ),
    Rule(
        "reward.functions",
        "self.environments.size() > 0 || self.reward.functions.all(one, one.kind != 'Environment')",
        "functions of kind Environment need environments: add one, or choose another kind",
    ),
    have_different_names("environments"),
    Rule(
        "data.domainField",
        "has(self.data.domainField) || (has(self.data.sources) && self.data.sources.exists(one, has(one.domain) || "
        "has(one.domainField))) || self.reward.functions.all(one, !has(one.domains) || one.domains.size() == 0) && "
        "self.environments.all(one, !has(one.domains) || one.domains.size() == 0)",
        "domainField is required by functions and environments with domains: set it to the field of a row that names "
        "its domain",
    ),
    Rule(
        "algorithm.warmStart",
        "!has(self.algorithm.warmStart) || has(self.algorithm.warmStart.data) || "
        "has(self.model.builtin) && has(self.data.builtin)",
        "warmStart needs data, since only the built-in model imitates demonstrations of the built-in task without: set "
        "warmStart.data",
    ),
    Rule(
        "trainer.tensorParallelSize",
        f"{_TRAINING_GPUS} % self.trainer.tensorParallelSize == 0 && ("
        + _fill(_MEGATRON_RANKS, _TRAINING_GPUS, _MOST_TRAINING_PODS, _TRAINING_PODS)
        + ")",
        "tensorParallelSize must divide gpusPerPod of the pods that train, and tensorParallelSize * "
        f"pipelineParallelSize * contextParallelSize {_MUST_FILL}",
    ),
    Rule(
        "trainer.fsdpSize",
        _fill("self.trainer.fsdpSize", _TRAINING_GPUS, _MOST_TRAINING_PODS, _TRAINING_PODS),
        f"fsdpSize {_MUST_FILL}",
    ),
    Rule(
        "trainer.dataParallelSize",
        f"!has(self.trainer.dataParallelSize) || self.trainer.dataParallelSize <= ({_TRAINING_GPUS} == 0 ? "
        f"{_TRAINING_PODS} : {_TRAINING_PODS} * {_TRAINING_GPUS} / {_RANKS})",
        "dataParallelSize exceeds the replicas that the pods that train hold, of an elastic job its minReplicas (one "
        "per pod where they have no GPUs): lower it",
    ),
    Rule(
        "managedBy",
        f"{_MANAGED_BY.format('self')} == {_MANAGED_BY.format('oldSelf')}",
        "managedBy is immutable: create a new RLJob instead of changing it",
    ),
    *(_frozen(field, f"self.{field} == oldSelf.{field}") for field in _FROZEN_WHILE_RUNNING),
    *(
        _frozen(
            field,
            f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        )
        for field in ("trainerWorkers", "modules")
    ),
)


class ManagedBy(StrEnum):
    """Who carries a job out."""

    OPERATOR = "longshore.dev/operator"
    MULTI_KUEUE = "kueue.x-k8s.io/multikueue"


class Modules(ApiModel):
    """Python files in a ConfigMap, from which functions at an `importPath` are imported."""

    config_map: str = Field(min_length=1, max_length=253)
    """ConfigMap in the namespace of the job. `longshore submit --with FILE` creates one that the job owns."""
    files: Annotated[
        list[Annotated[str, Field(max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*\.py$")]],
        Field(min_length=1, max_length=32),
    ]
    """Keys of the ConfigMap; `my_rewards.py` is imported as `my_rewards`."""


class RLJobSpec(ApiModel, rules=_RULES):
    """What the job trains, on which prompts and rewards, with which pods, and where its files are."""

    model: Model = Field(json_schema_extra=IMMUTABLE)
    """Model to train: a Hugging Face checkpoint in the storage of the job or on the Hub, or a tiny built-in model."""
    data: Data = Field(json_schema_extra=IMMUTABLE)
    """Prompts to train on and to evaluate with: one or several data sets, or a built-in task."""
    hub: Hub = Field(default_factory=Hub)
    """Hugging Face Hub, or a mirror of it, from which `model.hub` and `data.hub` are downloaded."""
    algorithm: Algorithm
    """Objective of the training, number of steps, size of a batch, and settings of the optimizer."""
    rollout: Rollout = Field(default_factory=Rollout)
    """How responses are sampled: the strategy for long responses, and the inference engines."""
    reward: Reward = Field(default_factory=Reward)
    """How and where responses are scored."""
    environments: Annotated[list[Environment], Field(max_length=32)] = Field(
        default_factory=list,
        json_schema_extra={"default": [], "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """Environments in which responses act over several turns, in pods of their own. Empty: a response is one turn."""
    modules: Modules | None = None
    """Python files with reward functions, environments and the objective, besides the packages of the image."""
    trainer: TrainerSettings = Field(default_factory=TrainerSettings)
    """Training library, how it splits the model over GPUs, and how much it computes at once."""
    evaluation: Evaluation = Field(default_factory=Evaluation)
    """When held-out prompts are scored, and how their responses are sampled."""
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings)
    """How often checkpoints are written, and how many are kept."""
    storage: Storage = Field(json_schema_extra=IMMUTABLE)
    """Volume with the model, the data and the output of the job. Environment pods do not mount it."""
    records: Records = Field(default_factory=Records)
    """How many responses and round timelines are kept as files in the output of the job."""
    tracking: Tracking = Field(default_factory=Tracking)
    """Trackers that get metrics and traces: TensorBoard, Weights & Biases, MLflow, OpenTelemetry."""
    workers: ElasticWorkers = Field(default_factory=ElasticWorkers)
    """GPU pods of the job. With placement Colocated they sample and train; with Disaggregated they only sample."""
    placement: Placement = Placement.COLOCATED
    """Which pods train. Colocated: the workers, which share their GPUs between engines and trainers. Disaggregated:
    those of `trainerWorkers`."""
    trainer_workers: Workers | None = None
    """GPU pods that train, with placement Disaggregated."""
    profiling: Profiling = Profiling.OFF
    """Whether the job measures the throughput of its pods. First: before it trains, into `profile.json` for `longshore
    simulate --profile`. Only: it measures and ends."""
    coordinator: PodOptions = Field(default_factory=PodOptions)
    """Resources and placement of the coordinator pod, which runs the training loop."""
    scheduling: Scheduling = Field(default_factory=Scheduling)
    """Whether the pods of the job start together, and where their nodes are."""
    managed_by: ManagedBy | None = None
    """Who runs the job. With MultiKueue it waits in a queue here and runs in the cluster that MultiKueue chooses.
    Unset: longshore.dev/operator."""
    image: str | None = Field(default=None, min_length=1, max_length=512)
    """Image of all pods, except environments with an image of their own. Unset: the runtime image of the operator's
    installation."""
    suspend: bool = False
    """Whether the job is suspended: its pods are stopped, and it resumes from its newest checkpoint."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Seconds after its end at which the job is deleted. Unset: it is never deleted."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """Seconds of activity after which the job fails. Unset: no limit."""
    backoff_limit: int = Field(default=6, ge=0, le=1_000)
    """Number of failures without a newer checkpoint in between after which the job fails. Lost nodes do not count."""

    @model_validator(mode="before")
    @classmethod
    def _is_small(cls, value: Any) -> Any:
        """Check the size first, so that no other check reads a spec that is too large."""
        return check_spec(value)

    @property
    def transfers_directly(self) -> bool:
        """Whether new weights go straight from trainers to engines."""
        transfer = self.rollout.engine.weight_transfer
        return transfer is WeightTransfer.DIRECT or (transfer is WeightTransfer.AUTO and self.workers.has_accelerator)

    @property
    def trains_with_modules(self) -> bool:
        """Whether trainers import Python files of the user."""
        return self.modules is not None and isinstance(self.algorithm.objective, Custom)

    @property
    def runs_elsewhere(self) -> bool:
        """Whether the pods of the job are in another cluster."""
        return self.managed_by is ManagedBy.MULTI_KUEUE

    @property
    def uses_hub(self) -> bool:
        """Whether the coordinator may have to download from the Hub."""
        teacher = self.algorithm.teacher
        models = self.model.hub, teacher.hub if teacher is not None else None
        return any(hub is not None for hub in (*models, *(one.origin.hub for one in self.data_sets)))

    @property
    def data_sets(self) -> tuple[Source, ...]:
        """The data sets of the rounds and of the warm start; built-in tasks are none."""
        warm_start = self.algorithm.warm_start
        supervised = warm_start.data if warm_start is not None else None
        return (*self.data.each, *([supervised.source] if supervised is not None else []))

    @property
    def num_pods(self) -> int:
        """Most pods that the job has at once besides the coordinator."""
        trainers = self.trainer_workers.replicas if self.trainer_workers is not None else 0
        return (
            self.workers.replicas
            + trainers
            + self.reward.most_pods
            + self.reward.num_judge_pods
            + len(environment_pods(self.environments))
        )

    @property
    def num_gpus(self) -> int:
        """GPUs of the job's workers and trainers; a pod without any counts as one."""
        pods = [self.workers] + ([self.trainer_workers] if self.trainer_workers is not None else [])
        return sum(one.replicas * max(1, one.gpus_per_pod) for one in pods)

    @property
    def pods_per_step(self) -> int:
        """Number of worker pods by which the job grows and shrinks: whole engines and trainer replicas lie in them."""
        sizes = [self.rollout.engine.tensor_parallel_size]
        if self.trainer_workers is None:
            sizes.append(self.trainer.ranks_per_replica)
        return pods_per_step(self.workers.gpus_per_pod, sizes)

    def resized(self, num_workers: int) -> "RLJobSpec":
        """Return the same job with another number of worker pods."""
        return self.model_copy(update={"workers": self.workers.model_copy(update={"replicas": num_workers})})

    def with_trainer(self, **changes: object) -> "RLJobSpec":
        """Return the job with other settings of its trainer, by attribute; rules are not checked."""
        return self.model_copy(update={"trainer": self.trainer.model_copy(update=changes)})

    @property
    def training_pods(self) -> Workers:
        """The pods on which trainers run."""
        return self.trainer_workers or self.workers

    @property
    def max_trainer_replicas(self) -> int:
        """Data-parallel replicas that the training pods have room for; one each where they have no GPUs."""
        return len(all_parts(self.training_pods, self.trainer.ranks_per_replica))
